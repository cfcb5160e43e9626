"""What the README shows is run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.process
def test_the_embedding_example_serves() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    end = "        print(urls)\n"
    assert end in code
    # The example serves until it is interrupted; here it ends by itself, after one request of its own.
    asked = "        import httpx2\n        async with httpx2.AsyncClient() as http:\n"
    asked += "            print((await http.get(urls[0] + '/health')).text)\n        nursery.cancel_scope.cancel()\n"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code.replace(end, end + asked)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "\n['http://127.0.0.1:" in "\n" + run.stdout
    assert '{"status":"ok"}' in run.stdout


def test_what_it_links_to_exists() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    missing = [each for each in targets if not each.startswith("http") and not (ROOT / each).exists()]
    assert missing == []


def test_the_limits_it_states_are_the_defaults() -> None:
    from server.config import Config

    config = Config()
    stated = {
        "8000": config.event_ring_size,
        "64 MiB": config.ring_bytes // 2**20,
        "256 events": config.max_queued_events,
        "64": config.max_subscribers,
    }
    for text, value in stated.items():
        assert text in README
        assert str(value) in text
