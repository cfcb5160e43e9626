"""Simulated cuts without end: ``python -m scripts.simulate --seeds A:B --minutes N [--transport rest|acp-http|acp-ws|nnrp]``.

Uses every core. Appends one line per chunk of seeds to the results file, so that a large number may span several runs; the
first line says what the columns mean. Exits with 1 when a run found something; each such run is printed with the command
that replays it.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import attrs
import structlog

TRANSPORTS = ("rest", "acp-http", "acp-ws", "nnrp")
CHUNK = 10
CORRUPT = 0.3
"""How many connections have a flipped byte, in each direction, with ``--corrupt``."""
HEADER = "when\ttransport\tfirst seed\tlast seed\tcuts per run\tcuts\tprompts\tevents\tfindings\n"


def quiet() -> None:
    """Every cut connection would be logged."""
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def run_chunk(transport: str, first: int, last: int, cuts: int, corrupt: bool = False) -> dict[str, Any]:
    """Run the seeds first..last (inclusive) and sum up. ``corrupt``: bytes are flipped, too, and less is asked of the outcome."""
    from server.testing.faults import Weather
    from server.testing.nnrp_storm import nnrp_weather, run_nnrp_storm
    from server.testing.storm import run_storm

    total: dict[str, Any] = {"transport": transport, "first": first, "last": last, "cuts": 0, "prompts": 0, "events": 0}
    bad = []
    for seed in range(first, last + 1):
        try:
            weather = nnrp_weather(seed) if transport == "nnrp" else Weather()
            if corrupt:
                weather = attrs.evolve(weather, corrupt=CORRUPT)
            if transport == "nnrp":
                report = run_nnrp_storm(seed, cuts=cuts, weather=weather)
            else:
                report = run_storm(seed, transport, cuts=cuts, weather=weather)
        except Exception as crash:  # a finding like any other: the seeds behind it are run all the same
            bad.append((seed, (describe(crash),)))
            continue
        total["cuts"] += report.cuts
        total["prompts"] += report.prompts
        total["events"] += report.events
        if report.findings:
            bad.append((seed, report.findings))
    return {**total, "bad": bad}


def describe(crash: BaseException) -> str:
    while isinstance(crash, BaseExceptionGroup):
        crash = crash.exceptions[0]
    place = traceback.extract_tb(crash.__traceback__)[-1]
    return f"crashed: {crash!r} in {place.name}, {Path(place.filename).name}:{place.lineno}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:100", help="A:B, seeds A to B-1")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--transport", choices=TRANSPORTS, action="append", help="default: all, in turn")
    parser.add_argument("--cuts", type=int, default=100, help="cuts per run (default 100)")
    parser.add_argument("--corrupt", action="store_true", help="flip bytes as well, and ask for less")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/simulation.tsv"))
    options = parser.parse_args()
    first, _, end = options.seeds.partition(":")
    transports = options.transport or list(TRANSPORTS)
    work = [
        (transport, seed, min(seed + CHUNK, int(end)) - 1)
        for seed in range(int(first), int(end), CHUNK)
        for transport in transports
    ]
    until = time.monotonic() + options.minutes * 60
    found = cuts = 0
    with ProcessPoolExecutor(options.jobs, initializer=quiet) as pool:
        waiting = {pool.submit(run_chunk, *each, options.cuts, options.corrupt) for each in work[: options.jobs]}
        del work[: options.jobs]
        while waiting:
            done = next(as_completed(waiting))
            waiting.discard(done)
            if work and time.monotonic() < until:
                waiting.add(pool.submit(run_chunk, *work.pop(0), options.cuts, options.corrupt))
            total = done.result()
            cuts += total["cuts"]
            found += len(total["bad"])
            record(options.results, total, options.cuts)
            for seed, findings in total["bad"]:
                print(f"seed {seed} {total['transport']}: {findings[0]} (+{len(findings) - 1} more)")
                print(
                    f"  replay: python -m scripts.simulate --seeds {seed}:{seed + 1} --transport {total['transport']}"
                    f" --cuts {options.cuts}{' --corrupt' * options.corrupt} --results /dev/null"
                )
    print(f"{cuts} cuts, {found} runs with findings")
    return 1 if found else 0


def record(path: Path, total: dict[str, Any], cuts: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = not path.exists()
    with path.open("a", encoding="utf-8") as file:
        if fresh:
            file.write(HEADER)
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        columns = (total["transport"], total["first"], total["last"], cuts, total["cuts"], total["prompts"])
        file.write("\t".join(map(str, (when, *columns, total["events"], len(total["bad"])))) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
