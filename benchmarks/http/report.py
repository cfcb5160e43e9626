"""From rounds to a page: medians of both servers, the figure that counts, and whether it reaches what is wanted."""

from __future__ import annotations

import platform
import statistics
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from benchmarks.http.measures import Measure
from benchmarks.http.servers import ROOT

__all__ = ["RESULTS", "machine", "medians", "write"]

RESULTS = ROOT / "benchmarks" / "results"


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Key by key."""
    return {key: statistics.median(figures[key] for figures in rounds) for key in rounds[0]}


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def machine() -> str:
    node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "unknown processor",
    )
    cpus = len([line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("processor")])
    return f"{cpus} × {model}, Python {platform.python_version()}, trio {version('trio')}, Node {node}"


def write(measure: Measure, found: Mapping[str, list[dict[str, float]]]) -> None:
    """Writes `results/http_NAME.md`."""
    middle = {name: medians(rounds) for name, rounds in found.items()}
    value, reached = measure.target(middle)
    rows = []
    peer = middle.get("qwen", {})
    for key in dict.fromkeys([*middle["moorline"], *peer]):
        ours, theirs = middle["moorline"].get(key), peer.get(key)
        ratio = _number(ours / theirs) if ours is not None and theirs else "–"
        cells = ["–" if figure is None else _number(figure) for figure in (ours, theirs)]
        rows.append(f"| {key} | {cells[0]} | {cells[1]} | {ratio} |")
    rounds = len(found["moorline"])
    text = "\n".join(
        [
            f"### {measure.title}",
            "",
            f"Wanted: {measure.wanted}. Found: {_number(value)}, {'reached' if reached else '**not reached**'}.",
            "",
            "| figure | moorline | qwen serve 0.24.4 | ratio |",
            "|---|---:|---:|---:|",
            *rows,
            "",
            f"Median of {rounds} round{'s' if rounds > 1 else ''}, the servers in turn. {machine()}.",
            "",
        ]
    )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"http_{measure.name}.md").write_text(text)
