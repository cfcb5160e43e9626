"""The same promise as scripts/fuzz_nnrp.py, with inputs that atheris finds by coverage.

python -m scripts.fuzz_nnrp_guided [--inputs N] [--seed K]; needs atheris (``pip install atheris``; Linux, CPython 3.11 to 3.13).

Begins with every packet of the vectors and captures. Runs add up beside those of the other one, in
scripts/fuzz_nnrp_runs.txt. An input that breaks the promise is written to the current folder by libFuzzer and ends the run
with exit code 1.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

LOG = Path(__file__).with_name("fuzz_nnrp_runs.txt")


def fuzz(inputs: int, seed: int, corpus: str) -> None:
    """Does not return: libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["protocol"]):
        from scripts.fuzz_nnrp import seeds, try_decode, try_stream
    for data in seeds():
        (Path(corpus) / f"{zlib.crc32(data):08x}").write_bytes(data)

    def test_one_input(data: bytes) -> None:
        chance = random.Random(zlib.crc32(data))
        try_decode(data, chance)
        try_stream(data, chance)

    atheris.Setup([sys.argv[0], f"-runs={inputs}", f"-seed={seed}", "-max_len=4096", corpus], test_one_input)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=None, help="default: from the clock")
    parser.add_argument("--corpus", help=argparse.SUPPRESS)
    options = parser.parse_args()
    seed = time.time_ns() & 0x7FFF_FFFF if options.seed is None else options.seed
    if options.corpus is not None:
        fuzz(options.inputs, seed, options.corpus)
    with tempfile.TemporaryDirectory() as corpus:
        command = [sys.executable, "-m", "scripts.fuzz_nnrp_guided", "--corpus", corpus]
        failed = subprocess.run([*command, "--inputs", str(options.inputs), "--seed", str(seed)]).returncode != 0
    line = f"{time.strftime('%Y-%m-%d')} atheris seed {seed} inputs {options.inputs} failures {int(failed)}"
    with LOG.open("a", encoding="utf-8") as log:
        log.write(line + "\n")
    print(line)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
