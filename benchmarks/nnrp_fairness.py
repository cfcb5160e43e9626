"""What priority classes are worth: latency of interactive work beside a load of background work, over loopback TCP.

    python -m benchmarks.nnrp_fairness [--seconds 5] [--rounds 3] [--write]

An operation holds one of four slots for 20 ms and uses no processor, so queues are the scheduler's and not the machine's.
Interactive clients come at random, a quarter of what the slots can do; eight background sessions always have eight
operations in flight each. Rounds take the cases in turn; figures are medians over the rounds. ``--write`` makes the result page.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs
import trio

from client.nnrp import NnrpConnection, NnrpSession, open_nnrp
from protocol.nnrp.enums import PriorityClass
from protocol.nnrp.machines.opening import OpenPolicy
from server.nnrp import ServingPolicy, listen_tcp, open_service
from server.nnrp.scheduler import SchedulingPolicy
from server.nnrp.submit import Answer, Emit, Submit, text_payload
from server.nnrp.workers import FunctionWorker
from server.telemetry import set_up_logging

__all__ = ["main"]

PAGE: Final = Path(__file__).resolve().parent / "results" / "nnrp_fairness.md"
SLOTS: Final = 4
HOLD: Final = 0.02
RATE: Final = 0.25 * SLOTS / HOLD
SESSIONS: Final = 8
LOAD: Final = 64
"""Operations in flight, over all of them."""
POLICY: Final = ServingPolicy(
    scheduling=SchedulingPolicy(slots=SLOTS, soft_waiting=10_000, hard_waiting=40_000),
    opening=OpenPolicy(max_in_flight_operations=128, operation_credit=128),
)
"""No backpressure: what is measured is the order of the queue, not how clients are held back."""
INTERACTIVE, BALANCED, BACKGROUND = PriorityClass


@attrs.frozen
class Case:
    name: str
    front: PriorityClass | None
    """Class of the clients that come at random; None: there are none."""
    back: PriorityClass | None
    front_load: int = 0
    """Operations the front always has in flight, instead of coming at random."""


CASES: Final = {
    "alone": Case("interactive alone", INTERACTIVE, None),
    "beside": Case("interactive beside background", INTERACTIVE, BACKGROUND),
    "mixed": Case("the same, all of one class", BALANCED, BALANCED),
    "back": Case("background alone", None, BACKGROUND),
    "flood": Case("interactive without end beside background", INTERACTIVE, BACKGROUND, LOAD),
}


@attrs.define
class Seen:
    front: list[float] = attrs.field(factory=list)
    """Seconds from submit to result."""
    back: int = 0


async def hold(submit: Submit, emit: Emit) -> Answer:
    await trio.sleep(HOLD)
    payload = text_payload(b"done", terminal=True, schema=(0x1001, 3))
    return Answer(payloads=(payload,), kinds=submit.metadata.payload_kind_bitmap)


async def at_random(connection: NnrpConnection, priority: PriorityClass, seen: Seen) -> None:
    session = await connection.open_session(priority=priority, max_in_flight=128)
    chance = random.Random(7)

    async def one() -> None:
        began = trio.current_time()
        await session.request(b"x")
        seen.front.append(trio.current_time() - began)

    async with trio.open_nursery() as nursery:
        while True:
            await trio.sleep(chance.expovariate(RATE))
            nursery.start_soon(one)


async def without_end(
    connection: NnrpConnection, priority: PriorityClass, count: int, note: Callable[[float], None]
) -> None:
    async def again(session: NnrpSession) -> None:
        while True:
            began = trio.current_time()
            await session.request(b"x")
            note(trio.current_time() - began)

    async with trio.open_nursery() as nursery:
        for _ in range(SESSIONS):
            session = await connection.open_session(priority=priority)
            for _ in range(count // SESSIONS):
                nursery.start_soon(again, session)


async def run_case(case: Case, seconds: float) -> Seen:
    seen = Seen()

    def note_back(_: float) -> None:
        seen.back += 1

    async with open_service(POLICY, lambda _: FunctionWorker(hold)) as service, trio.open_nursery() as nursery:
        host, port = (await nursery.start(listen_tcp, service, "127.0.0.1", 0))[0]
        url = f"tcp://{host}:{port}"
        async with open_nnrp(url) as front, open_nnrp(url) as back:
            with trio.move_on_after(seconds):
                async with trio.open_nursery() as load:
                    if case.back is not None:
                        load.start_soon(without_end, back, case.back, LOAD, note_back)
                    if case.front is not None and case.front_load:
                        load.start_soon(without_end, front, case.front, case.front_load, seen.front.append)
                    elif case.front is not None:
                        load.start_soon(at_random, front, case.front, seen)
                    await trio.sleep_forever()
        nursery.cancel_scope.cancel()
    return seen


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


def page(found: dict[str, list[Seen]], seconds: float) -> str:
    def p(key: str, share: float) -> float:
        return 1000 * statistics.median([percentile(each.front, share) for each in found[key]])

    def rate(key: str) -> float:
        return statistics.median([each.back for each in found[key]]) / seconds

    alone, flood = p("alone", 0.99), rate("flood")
    rounds = len(found["alone"])
    lines = [
        f"Scheduling of NNRP operations by priority class: {SLOTS} slots, {1000 * HOLD:.0f} ms each, interactive clients at"
        f" random with a quarter of the slots, {LOAD} background operations of {SESSIONS} sessions always in flight, 64 B over loopback TCP, client"
        f" and server in one process. Medians of {rounds} rounds of {seconds:g} s taken in turns.",
        "",
        "| case | interactive p50, ms | interactive p99, ms | p99 beside p99 alone | background, operations/s |",
        "|---|---|---|---|---|",
    ]
    for key, case in CASES.items():
        front = [f"{p(key, 0.5):.1f}", f"{p(key, 0.99):.1f}", f"{p(key, 0.99) / alone:.1f} ×"]
        if case.front is None:
            front = ["–"] * 3
        elif case.front_load:
            front[2] = "–"  # it waits for itself
        back = "–" if case.back is None else f"{rate(key):.0f}"
        lines.append(f"| {case.name} | {' | '.join(front)} | {back} |")
    share = rate("beside") / rate("back")
    lines += [
        "",
        f"Beside interactive work background keeps {share:.0%} of what it does alone; a quarter of the slots is never its own."
        f" Where interactive work never ends it is served once in every {POLICY.scheduling.ageing:g} s, or after"
        f" {POLICY.scheduling.patience} starts of others where that takes longer (nnrp-wire 13.5): {flood * seconds:.0f} times"
        f" in {seconds:g} s, those included that found a free slot at the beginning. Of one class, eight background sessions"
        " take eight turns in nine, and interactive work piles up.",
    ]
    return "\n".join(lines) + "\n"


async def measure(seconds: float, rounds: int) -> str:
    found: dict[str, list[Seen]] = {key: [] for key in CASES}
    for _ in range(rounds):
        for key, case in CASES.items():
            found[key].append(await run_case(case, seconds))
    return page(found, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write the result page")
    wanted = parser.parse_args()
    set_up_logging("error", "text")
    text = trio.run(measure, wanted.seconds, wanted.rounds)
    print(text)
    if wanted.write:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
