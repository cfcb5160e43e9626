"""Throw damaged NNRP at the codec: python -m scripts.fuzz_nnrp [--inputs N] [--seconds S] [--seed K] [--processes P]

The promise (issue 4): arbitrary bytes give packets or a *remote* protocol error, and nothing else. Each input is a
packet of the vectors or captures, or several, with bytes flipped, numbers replaced, pieces cut, doubled or exchanged;
it goes through `decode_packet` in both modes and, in random pieces, through a `Splitter`. What a strict receiver
accepts must pack to the same bytes and be accepted by a tolerant one. A packet of a stream, which may be read as those like it
were read before, must be what `decode_packet` makes of it alone.

Runs add up: each appends one line to scripts/fuzz_nnrp_runs.txt (date, seed, inputs, accepted, failures). An input that
breaks the promise is printed with its seed and number, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from protocol.nnrp.enums import OperationFeatures
from protocol.nnrp.errors import NnrpError
from protocol.nnrp.packet import Packet, RawPacket, decode_packet
from protocol.nnrp.splitter import Splitter

ROOT = Path(__file__).resolve().parent.parent
VECTORS = ROOT / "tests" / "vectors" / "nnrp"
LOG = Path(__file__).with_name("fuzz_nnrp_runs.txt")
NUMBERS = (0, 1, 2, 7, 8, 15, 16, 24, 31, 32, 40, 63, 64, 127, 128, 255, 256, 4095, 4096, 65535, 2**31, 2**32 - 1)


def seeds() -> list[bytes]:
    """Every packet of the vectors, good and bad, and of the recorded streams."""
    vectors = json.loads((VECTORS / "nnrp-preview3.json").read_text())
    found = {
        bytes.fromhex(each["hex"]) for each in (*vectors["positive"], *vectors["negative"]) if each["kind"] == "packet"
    }
    for path in (VECTORS / "captures").glob("*.json"):
        recorded = json.loads(path.read_text())
        if isinstance(recorded, dict):
            found |= {bytes.fromhex(each["hex"]) for each in recorded.get("packets", ()) if "hex" in each}
    return sorted(found)


def mutate(data: bytearray, chance: random.Random, others: list[bytes]) -> None:
    """One change in place."""
    size = len(data)
    place = chance.randrange(size) if size else 0
    match chance.randrange(8):
        case 0 if size:
            data[place] ^= 1 << chance.randrange(8)
        case 1 if size:
            data[place] = chance.randrange(256)
        case 2:
            width = chance.choice((1, 2, 4, 8))
            value = chance.choice(NUMBERS) & ((1 << (8 * width)) - 1)
            data[place : place + width] = value.to_bytes(width, "little")
        case 3:
            del data[place : place + chance.randrange(1, 33)]
        case 4:
            data[place:place] = data[place : place + chance.randrange(1, 33)]
        case 5:
            data[place:place] = chance.randbytes(chance.randrange(1, 17))
        case 6:
            other = chance.choice(others)
            data[place:] = other[place:]
        case _:
            del data[place:]


def repair_lengths(data: bytearray) -> None:
    """Make body_len true, so that the damage reaches metadata and body."""
    if len(data) >= 40:
        meta_len = min(int.from_bytes(data[12:16], "little"), len(data) - 40)
        data[12:16] = meta_len.to_bytes(4, "little")
        data[16:20] = (len(data) - 40 - meta_len).to_bytes(4, "little")


def make(chance: random.Random, others: list[bytes]) -> bytes:
    data = bytearray(chance.choice(others))
    for _ in range(chance.choice((0, 1, 1, 1, 2, 2, 3, 5, 9))):
        mutate(data, chance, others)
    if chance.random() < 0.7:
        repair_lengths(data)
    if chance.random() < 0.1:
        data += chance.choice(others)
    return bytes(data)


def try_decode(data: bytes, chance: random.Random) -> bool:
    """Both modes; True when the strict one accepts."""
    granted = OperationFeatures(chance.choice((0, 0, 31, chance.randrange(32))))
    accepted = False
    try:
        packet = decode_packet(data, granted=granted)
    except NnrpError as error:
        if error.outcome.value not in str(error):
            raise AssertionError("an error does not name its outcome") from error
    else:
        accepted = True
        if packet.pack() != data:
            raise AssertionError("an accepted packet packs to other bytes")
    try:
        decode_packet(data, strict=False, granted=granted)
    except NnrpError as error:
        if accepted:
            raise AssertionError("tolerant refuses what strict accepts") from error
    return accepted


def try_stream(data: bytes, chance: random.Random) -> None:
    splitter, start, consumed = Splitter(max_body_bytes=1 << 20), 0, 0
    try:
        while start < len(data):
            step = chance.choice((1, 3, 20, 64, 4096))
            splitter.receive_data(data[start : start + step])
            start += step
            for raw in splitter.packets():
                if raw.data != data[consumed : consumed + len(raw.data)]:
                    raise AssertionError("the splitter gives other bytes than it got")
                consumed += len(raw.data)
                check_alone(raw, chance)
        splitter.receive_eof()
        for _ in splitter.packets():
            raise AssertionError("a packet appears at the end of the stream")
    except NnrpError:
        return
    if consumed != len(data):
        raise AssertionError("bytes are left over without an error")


def check_alone(raw: RawPacket, chance: random.Random) -> None:
    strict, granted = chance.random() < 0.5, OperationFeatures(chance.randrange(32))
    found = outcome(lambda: raw.decode(strict=strict, granted=granted))
    if found != outcome(lambda: decode_packet(raw.data, strict=strict, granted=granted)):
        raise AssertionError("a packet is something else in its stream than it is alone")


def outcome(decode: Callable[[], Packet]) -> object:
    """The packet, or everything its error says."""
    try:
        return decode()
    except NnrpError as error:
        return str(error), error.offset, error.code, error.reach, error.fatal


@dataclass(slots=True)
class Tally:
    inputs: int = 0
    accepted: int = 0
    failures: int = 0


def run(seed: int, inputs: int, seconds: float) -> Tally:
    """Up to ``inputs`` inputs or ``seconds``, whichever comes first; the same seed gives the same inputs."""
    chance, others, tally = random.Random(seed), seeds(), Tally()
    deadline = time.monotonic() + seconds
    while tally.inputs < inputs and (tally.inputs % 256 or time.monotonic() < deadline):
        data = make(chance, others)
        try:
            tally.accepted += try_decode(data, chance)
            if tally.inputs % 4 == 0:
                try_stream(data, chance)
        except Exception:
            tally.failures += 1
            print(f"seed {seed}, input {tally.inputs}: {data.hex()}\n{traceback.format_exc()}")
        tally.inputs += 1
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="inputs in all")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=None, help="default: from the clock")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    seed = time.time_ns() & 0xFFFF_FFFF if options.seed is None else options.seed
    jobs = [(seed + each, options.inputs // options.processes, options.seconds) for each in range(options.processes)]
    if len(jobs) == 1:
        tallies = [run(*jobs[0])]
    else:
        with multiprocessing.Pool(len(jobs)) as pool:
            tallies = pool.starmap(run, jobs)
    inputs, accepted, failures = (
        sum(getattr(each, name) for each in tallies) for name in ("inputs", "accepted", "failures")
    )
    line = f"{time.strftime('%Y-%m-%d')} seed {seed} inputs {inputs} accepted {accepted} failures {failures}"
    with LOG.open("a", encoding="utf-8") as log:
        log.write(line + "\n")
    print(line)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
