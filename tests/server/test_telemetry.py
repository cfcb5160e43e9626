"""Where log lines go: where the program wants them, and nowhere if it says nothing."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from server.telemetry import HypercornLogger, log, logger_of, set_up_logging

ROOT = Path(__file__).resolve().parents[2]

EMBEDDING = """
import trio
from server.backends import HandlerRunner
from server.metrics import Metrics
from sessions import PromptRequest, open_harbour

async def fail(operation, emit):
    raise ValueError("a defect of the handler")

async def main():
    async with open_harbour(HandlerRunner(fail), workspaces=["/"], observer=Metrics()) as harbour:
        session = (await harbour.create()).session
        operation, _ = session.submit_prompt(PromptRequest([{"type": "text", "text": "x"}]))
        assert (await operation.wait_settled()).error is not None

trio.run(main)
"""


def test_an_embedded_harbour_is_silent() -> None:
    """Issue 3, client and server as libraries: standard output belongs to the program."""
    done = subprocess.run(
        [sys.executable, "-c", EMBEDDING], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_to_the_standard_library(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    """Without structlog set up: one line per event under ``moorline``, cleaned as everywhere (ACP-257)."""
    caplog.set_level(logging.INFO)
    log.debug("unheard")
    log.info("session_started", session_id="s\x1b[1m", path="100%s", count=2)
    log.bind(connection="c").warning("odd", names=["a\n", "b"])
    try:
        raise ValueError("x")
    except ValueError as problem:
        logger_of("agent").error("failed", exc_info=problem)
    assert [(each.name, each.levelname, each.getMessage()) for each in caplog.records] == [
        ("moorline", "INFO", "session_started session_id='s[1m' path='100%s' count=2"),
        ("moorline", "WARNING", "odd connection='c' names=['a', 'b']"),
        ("moorline.agent", "ERROR", "failed"),
    ]
    assert caplog.records[2].exc_info is not None
    assert capsys.readouterr() == ("", "")


def test_to_structlog_once_it_is_set_up(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    """A program's own structlog gets our events as they are; and so does the one a start of ours sets up."""
    caplog.set_level(logging.INFO)
    heard: list[dict[str, object]] = []

    def hear(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        heard.append(dict(event))
        raise structlog.DropEvent

    structlog.configure(processors=[hear])
    logger_of("handler").info("one", a=1)
    assert heard == [{"event": "one", "a": 1}]
    set_up_logging("warning", "json", sys.stderr)
    log.info("two")
    log.warning("three", b=2)
    out, err = capsys.readouterr()
    assert out == ""
    assert '"event": "three"' in err
    assert '"two"' not in err
    assert caplog.records == []


async def test_what_hypercorn_says(caplog: pytest.LogCaptureFixture) -> None:
    """Its arguments are filled in once, and a percent sign in them is one."""
    caplog.set_level(logging.INFO)
    logger = HypercornLogger(None)
    await logger.warning("%s of %s", "100%", 3)
    await logger.log(logging.ERROR, "plain")
    assert [each.getMessage() for each in caplog.records] == [
        "server_message source='hypercorn' message='100% of 3'",
        "server_message source='hypercorn' message='plain'",
    ]
