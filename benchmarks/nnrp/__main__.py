"""NNRP served: ``python -m benchmarks.nnrp [--rounds N]``. Writes benchmarks/results/nnrp_served.md.

Servers and clients are processes of their own, two at a time; the compared pairs take turns within each round, and tables
show medians. Operations echo their payload: moorline's built-in echo runner, nnrp-py's session API with the same answer.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.http.report import machine
from benchmarks.http.servers import ROOT, cpu_seconds, rss_bytes
from tests.support.certificates import make_signed_certificate

__all__ = ["main"]

RESULT = ROOT / "benchmarks" / "results" / "nnrp_served.md"
MIB = 1 << 20
IDLE_SESSIONS = 20_000
OPENS = 8_000.0
"""Sessions per second wanted at least."""
_WEB = re.compile(r"listening on http(s?://\S+)")
_PORT = re.compile(r"nnrp_listening.*\bport=(\d+).*\btransport=(\w+)|nnrp_listening.*\btransport=(\w+).*\bport=(\d+)")


@contextmanager
def process(*role: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.nnrp.roles", *role],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


@contextmanager
def moorline(*more: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """``moorline serve`` with the echo runner: the process, and the URL of each transport."""
    command = [sys.executable, "-m", "server", "--port", "0", "--nnrp-port", "0", "--nnrp-runner", "echo"]
    command += ["--nnrp-max-in-flight", "64", "--nnrp-operation-credit", "64", *more]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert child.stdout is not None
    urls: dict[str, str] = {}
    try:
        for line in child.stdout:
            if found := _PORT.search(line):
                transport = found[2] or found[3]
                urls[transport] = f"{transport}://127.0.0.1:{found[1] or found[4]}"
            elif found := _WEB.search(line):
                urls["ws"] = f"ws{found[1]}"
                yield child, urls
                break
        else:
            raise RuntimeError("the server did not say where it listens")
    finally:
        child.terminate()
        child.communicate()


@contextmanager
def one_core(turn: int) -> Iterator[None]:
    """What is started in here runs on one core, another at every turn."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(before)[turn % len(before)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def number(*role: str) -> float:
    with process(*role) as child:
        assert child.stdout is not None
        text = child.stdout.readline()
        if not text:
            raise RuntimeError(f"{role} printed nothing")
        return float(text)


def round_of_echoes(figures: dict[str, list[float]], shapes: dict[str, tuple[int, int, int]]) -> None:
    """Every shape (count, width, size) on all three pairs."""
    with ExitStack() as stack:
        _, urls = stack.enter_context(moorline())
        ports = {}
        for name in ("their", "bare"):
            server = stack.enter_context(process(f"{name}-server"))
            assert server.stdout is not None
            ports[name] = server.stdout.readline().strip()
        for shape, (count, width, size) in shapes.items():
            words = [str(count), str(width), str(size)]
            figures.setdefault(f"{shape} ours", []).append(number("our-client", urls["tcp"], *words))
            for name, port in ports.items():
                figures.setdefault(f"{shape} {name}", []).append(number(f"{name}-client", port, *words))


def round_of_opens(figures: dict[str, list[float]]) -> None:
    with moorline() as (_, urls), process("their-server") as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        figures.setdefault("opens ours", []).append(number("our-opens", urls["tcp"], "10000"))
        figures.setdefault("opens their", []).append(number("their-hellos", port, "300"))


def memory_per_session() -> float:
    """KiB of the server process per idle session, all on one connection."""
    with moorline() as (server, urls):
        url = urls["tcp"]
        number("our-opens", url, "500")  # what grows once is not counted
        before = rss_bytes(server.pid)
        with process("our-idle", url, str(IDLE_SESSIONS)) as client:
            assert client.stdout is not None
            assert int(client.stdout.readline()) == IDLE_SESSIONS
            return (rss_bytes(server.pid) - before) / IDLE_SESSIONS / 1024


def cpu_per_operation(width: int, count: int) -> float:
    """Microseconds of the server per 64-byte operation."""
    with moorline() as (server, urls):
        number("our-client", urls["tcp"], "500", str(width), "64")
        before = cpu_seconds(server.pid)
        number("our-client", urls["tcp"], str(count), str(width), "64")
        return (cpu_seconds(server.pid) - before) / count * 1e6


def round_of_transports(figures: dict[str, list[float]]) -> None:
    """The same client and server over every transport, and what an operation costs the server there."""
    with TemporaryDirectory() as place, ExitStack() as stack:
        made = make_signed_certificate(Path(place))
        plain, urls = stack.enter_context(moorline())
        tls = ("--tls-cert", str(made.cert), "--tls-key", str(made.key))
        secure, secured = stack.enter_context(moorline(*tls, "--nnrp-tls-port", "0", "--nnrp-quic-port", "0"))
        for transport, server in (("tcp", plain), ("ws", plain), ("tls", secure), ("quic", secure)):
            url = (urls if server is plain else secured)[transport]
            for shape, (count, width, size) in TRANSPORT_SHAPES.items():
                before = cpu_seconds(server.pid)
                rate = number("our-client", url, str(count), str(width), str(size), str(made.authority))
                figures.setdefault(f"{transport} {shape}", []).append(rate)
                figures.setdefault(f"{transport} {shape} cpu", []).append(
                    (cpu_seconds(server.pid) - before) / count * 1e6
                )


SHAPES = {
    "64 B, serial": (4_000, 1, 64),
    "64 B, 32 in flight": (20_000, 32, 64),
    "1 MiB, serial": (150, 1, MIB),
    "1 MiB, 4 in flight": (200, 4, MIB),
}
SERIAL_ON_ONE_CORE = {"64 B, serial, on one core": SHAPES["64 B, serial"]}
TRANSPORT_SHAPES = {
    "64 B, serial": (1_000, 1, 64),
    "64 B, 32 in flight": (5_000, 32, 64),
    "1 MiB, 4 in flight": (40, 4, MIB),
}
WANTED = {
    "64 B, serial, on one core": (3.0, 0.60),
    "64 B, serial": (3.0, 0.60),
    "64 B, 32 in flight": (8.0, 0.15),
    "1 MiB, serial": (2.0, None),
    "1 MiB, 4 in flight": (2.0, None),
}


def page(middle: dict[str, float], rounds: int) -> str:
    lines = [
        "### NNRP served over TCP, beside nnrp-py 1.0.0rc3.post5 and a bare length-prefixed echo on Trio",
        "",
        "| operations/s | moorline | nnrp-py | ratio | wanted | bare echo | share | wanted |",
        "|---|---:|---:|---:|---|---:|---:|---|",
    ]
    for shape, (ratio, share) in WANTED.items():
        ours, theirs, bare = (middle[f"{shape} {who}"] for who in ("ours", "their", "bare"))
        lines.append(
            f"| {shape} | {ours:,.0f} | {theirs:,.0f} | {judged(ours / theirs, ratio)} | ≥ {ratio:g} | {bare:,.0f} | "
            + (f"{judged(ours / bare, share)} | ≥ {share:g} |" if share else f"{ours / bare:.2f} | – |")
        )
    opens, hellos = middle["opens ours"], middle["opens their"]
    wanted = max(OPENS, 2 * hellos)
    memory = middle["memory"]
    lines += [
        "",
        "* Serial: one end works while the other waits. On one core that is all there is to measure; on two virtual cores every "
        "message also waits for a core that sleeps to be woken, and the code comes back to caches that have gone cold.",
        f"* SESSION_OPEN to ACK on one connection, 64 under way: {opens:,.0f}/s; nnrp-py connects and says hello "
        f"{hellos:,.0f} times a second. Wanted ≥ {wanted:,.0f}/s: {'reached' if opens >= wanted else '**not reached**'}.",
        f"* Memory of the server per idle session, {IDLE_SESSIONS:,} on one connection: {memory:.1f} KiB. Wanted ≤ 6 KiB: "
        f"{'reached' if memory <= 6 else '**not reached**'}.",
        f"* Processor time of the server per 64-byte operation: {middle['cpu serial']:.0f} µs serial, "
        f"{middle['cpu wide']:.0f} µs with 32 in flight.",
        f"* 1 MiB both ways, 4 in flight: {2 * middle['1 MiB, 4 in flight ours'] * MIB / 1e6:,.0f} MB/s.",
        "",
        "| transport | " + " | ".join(f"{shape}, /s (of TCP) | server µs" for shape in TRANSPORT_SHAPES) + " |",
        "|---|" + "---:|" * (2 * len(TRANSPORT_SHAPES)),
        *[transport_row(middle, transport) for transport in ("tcp", "tls", "ws", "quic")],
        "",
        f"Median of {rounds} round{'s' if rounds > 1 else ''}, the pairs in turn. {machine()}.",
        "",
    ]
    return "\n".join(lines)


def transport_row(middle: dict[str, float], transport: str) -> str:
    cells = [transport]
    for shape in TRANSPORT_SHAPES:
        rate = middle[f"{transport} {shape}"]
        share = rate / middle[f"tcp {shape}"]
        cells += [f"{rate:,.0f} ({share:.2f})", f"{middle[f'{transport} {shape} cpu']:,.0f}"]
    return "| " + " | ".join(cells) + " |"


def judged(value: float, wanted: float) -> str:
    return f"{value:.2f}" if value >= wanted else f"**{value:.2f}**"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nnrp", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    figures: dict[str, list[float]] = {}
    for turn in range(rounds):
        with one_core(turn):
            round_of_echoes(figures, SERIAL_ON_ONE_CORE)
        round_of_echoes(figures, SHAPES)
        round_of_opens(figures)
        round_of_transports(figures)
        figures.setdefault("memory", []).append(memory_per_session())
        figures.setdefault("cpu serial", []).append(cpu_per_operation(1, 2_000))
        figures.setdefault("cpu wide", []).append(cpu_per_operation(32, 10_000))
        print({name: round(values[-1], 2) for name, values in figures.items()}, flush=True)
    text = page({name: statistics.median(values) for name, values in figures.items()}, rounds)
    RESULT.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
