"""Write the generated pages, or with ``--check`` fail when one is out of date.

Every module of ``scripts.generators`` contributes ``documents()``: a mapping of repository path to text, made from the
declarations the code itself runs on.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path

from scripts import generators

ROOT = Path(__file__).resolve().parent.parent


def collect() -> dict[str, str]:
    pages: dict[str, str] = {}
    for info in sorted(pkgutil.iter_modules(generators.__path__), key=lambda each: each.name):
        module = importlib.import_module(f"scripts.generators.{info.name}")
        for path, text in module.documents().items():
            if path in pages:
                raise SystemExit(f"two generators write {path}")
            pages[path] = text
    return pages


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale: list[str] = []
    for path, text in collect().items():
        target = ROOT / path
        if target.exists() and target.read_text(encoding="utf-8") == text:
            continue
        if check:
            stale.append(path)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
    for path in stale:
        print(f"out of date: {path} (run: python -m scripts.generate)", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
