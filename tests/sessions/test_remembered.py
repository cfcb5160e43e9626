"""What a session keeps of a prompt: its name, its answer to a repeated request, and not its megabytes."""

from __future__ import annotations

import pytest

from sessions import Harbour, Limits, PromptRequest
from sessions.operation import REMEMBERED_TEXT, TITLE_LENGTH
from tests.support.engine import quiet, submit, text


def test_title() -> None:
    """One line, bounded, None without text."""
    assert text("  say\n hello  ").title() == "say hello"
    assert PromptRequest([{"type": "image", "data": "AA=="}]).title() is None
    assert text("   ").title() is None
    assert len(text("word " * 500).title() or "") <= TITLE_LENGTH


async def test_first_prompt_names_the_session(harbour: Harbour) -> None:
    """REST-041 ``displayName``: until somebody gives another."""
    session = (await harbour.create()).session
    assert session.display_name is None
    submit(session, "say hello")
    submit(session, "something else")
    assert session.display_name == "say hello"
    session.rename("mine")
    submit(session, "a third")
    assert session.display_name == "mine"


async def test_a_settled_prompt_keeps_no_megabytes(harbour: Harbour) -> None:
    """The memory of 256 settled prompts is bounded in bytes too."""
    session = (await harbour.create()).session
    small = submit(session, "small")
    large = submit(session, "large " + "x" * REMEMBERED_TEXT)
    picture = {"type": "image", "data": "A" * 100_000, "mimeType": "image/png"}
    mixed, _ = session.submit_prompt(PromptRequest([{"type": "text", "text": "look"}, picture]))
    assert picture in mixed.request.blocks
    await quiet()
    assert small.request.text() == "small"
    assert len(large.request.text()) <= TITLE_LENGTH
    assert mixed.request == PromptRequest([{"type": "text", "text": "look"}])


@pytest.mark.parametrize("limits", [Limits(remembered_prompts=2)])
async def test_a_repeated_request_gets_its_first_answer(harbour: Harbour) -> None:
    """REST-062: the head before the prompt, although the ring went on and the operation is forgotten."""
    session = (await harbour.create()).session
    first = session.submit_prompt(text("one"), idempotency=("key", b"1"))
    await quiet()
    for _ in range(5):
        submit(session, "more")
        await quiet()
    assert session.operations.get(first[0].id) is None
    assert session.submit_prompt(text("one"), idempotency=("key", b"1")) == first
    assert first[1] == 0
