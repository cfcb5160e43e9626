"""Puts benchmarks/results/*.md together as benchmarks/RESULTS.md: python -m benchmarks.assemble"""

from __future__ import annotations

from pathlib import Path

__all__ = ["main"]

HERE = Path(__file__).resolve().parent
_HEAD = """# Benchmark results

Figures of one small two-core machine over loopback: trust the ratios, not the absolute values, and take differences under
about 25 % as noise. The servers, their agent and the client share the two cores. How each figure is taken: the modules
beside this page; each table says how many rounds it is the median of.

"""
_PARTS = (("http_", "REST and /acp, beside `qwen serve` 0.24.4"), ("nnrp", "NNRP"), ("", "Others"))


def main() -> None:
    pages = sorted((HERE / "results").glob("*.md"))
    text = _HEAD
    for prefix, title in _PARTS:
        mine = [page for page in pages if page.name.startswith(prefix)]
        pages = [page for page in pages if page not in mine]
        if mine:
            text += f"## {title}\n\n" + "\n".join(page.read_text().rstrip() + "\n" for page in mine) + "\n"
    (HERE / "RESULTS.md").write_text(text.rstrip() + "\n")


if __name__ == "__main__":
    main()
