"""Runs the HTTP measures, both servers side by side, and writes benchmarks/results/http_*.md.

python -m benchmarks.http [MEASURE ...] [--repeats N] [--server moorline|qwen|both]
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.http.measures import MEASURES, Measure
from benchmarks.http.report import write
from benchmarks.http.servers import NAMES

__all__ = ["main"]


def run(measure: Measure, servers: tuple[str, ...], repeats: int) -> dict[str, list[dict[str, float]]]:
    """The figures of each round; the servers take turns, so that a slow minute of the machine meets both."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
    for _ in range(repeats):
        for name in servers:
            figures = measure.of(name)
            found[name].append(figures)
            shown = ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
            print(f"{measure.name} {name}: {shown}", flush=True)
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http", description=__doc__)
    parser.add_argument("measures", nargs="*", choices=[*MEASURES, []], help="default: all")
    parser.add_argument("--repeats", type=int, default=None, help="rounds per measure (default: each measure's own)")
    parser.add_argument("--server", choices=[*NAMES, "both"], default="both")
    options = parser.parse_args(arguments)
    servers = NAMES if options.server == "both" else (options.server,)
    for name in options.measures or MEASURES:
        measure = MEASURES[name]
        asked = tuple(server for server in measure.servers if server in servers)
        found = run(measure, asked, options.repeats or measure.repeats)
        if asked == measure.servers:
            write(measure, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
