"""Which event ends which prompt: CLI-016, CLI-027."""

from __future__ import annotations

from typing import Any

import pytest

from client import DaemonTurnError, Event, PromptResult
from client.prompts import REMEMBERED_TURNS, PromptLedger, Ticket


def block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def echo(text: str, event_id: int | None = None, source: str = "bridge-echo") -> Event:
    update = {"sessionUpdate": "user_message_chunk", "content": block(text), "_meta": {"source": source}}
    return Event("session_update", {"update": update}, event_id)


def end(prompt_id: str | None = None, event_id: int | None = None, stop: str = "end_turn") -> Event:
    return Event("turn_complete", {"stopReason": stop, "promptId": prompt_id}, event_id, prompt_id=prompt_id)


def added(text: str, prompt_id: str) -> Event:
    return Event("pending_prompt_added", {"text": text, "promptId": prompt_id}, prompt_id=prompt_id)


def removed(prompt_id: str) -> Event:
    return Event("pending_prompt_completed", {"promptId": prompt_id, "state": "removed"}, prompt_id=prompt_id)


def tickets(ledger: PromptLedger, *texts: str) -> list[Ticket]:
    made = [Ticket(block(text)) for text in texts]
    for ticket in made:
        ledger.add(ticket)
    return made


def test_a_known_id_is_settled_by_its_event_alone() -> None:
    """CLI-016: by promptId, whatever else ends."""
    ledger = PromptLedger()
    one, two = Ticket(), Ticket()
    one.prompt_id, two.prompt_id = "1", "2"
    ledger.add(one)
    ledger.add(two)
    ledger.take(end("other", 1))
    ledger.take(end("2", 2, "refusal"))
    assert not one.settled
    assert two.result() == PromptResult("refusal")
    ledger.take(Event("turn_error", {"message": "boom", "promptId": "1"}, 3, prompt_id="1"))
    with pytest.raises(DaemonTurnError, match="boom") as caught:
        one.result()
    assert (caught.value.status, caught.value.code, caught.value.prompt_id) == (500, "turn_error", "1")


def test_an_end_seen_before_the_acceptance() -> None:
    """CLI-016: the stream was faster than the 202; the last 64 ends are remembered."""
    ledger = PromptLedger()
    for number in range(REMEMBERED_TURNS + 1):
        ledger.take(end(str(number), number + 1))
    forgotten, known = Ticket(), Ticket()
    forgotten.prompt_id, known.prompt_id = "0", "1"
    ledger.add(forgotten)
    ledger.add(known)
    assert known.settled
    assert not forgotten.settled


def test_the_only_outstanding_prompt_of_a_lost_connection() -> None:
    """CLI-027: not before the connection is lost, not while there are two, and never from a replayed event."""
    ledger = PromptLedger()
    (ticket,) = tickets(ledger, "x")
    ledger.take(end("a", 5))
    assert not ticket.settled
    ledger.mark_lost()
    ledger.take(end("a", 5))
    ledger.take(end("a", 4))
    assert not ticket.settled
    (other,) = tickets(ledger, "y")
    ledger.take(end("b", 6))
    assert not ticket.settled
    other.settle(PromptResult("end_turn"))
    ledger.take(end("c", 7, "refusal"))
    assert ticket.result() == PromptResult("refusal")


def test_the_echo_says_whose_turn_it_is() -> None:
    """CLI-027, ACP-185: turns run one after another, so the echo of a prompt tells which end is its own."""
    ledger = PromptLedger()
    one, two = tickets(ledger, "one", "two")
    ledger.mark_lost()
    ledger.take(echo("somebody else's", 1))
    ledger.take(end("a", 2))
    assert not one.settled
    ledger.take(echo("two", 3))
    ledger.take(echo("two", 4, source="agent"))
    ledger.take(end("b", 5, "refusal"))
    assert two.result() == PromptResult("refusal")
    assert not one.settled


def test_an_end_that_came_before_the_loss() -> None:
    """CLI-027: the turn was seen to end, then the answer was lost: the end is the outcome."""
    ledger = PromptLedger()
    (ticket,) = tickets(ledger, "x")
    ledger.take(echo("x", 1))
    ledger.take(end("a", 2))
    assert not ticket.settled
    ledger.mark_lost()
    assert ticket.settled


def test_a_prompt_taken_out_of_the_queue_ends_no_turn() -> None:
    """CLI-027, REST-068: its turn_complete comes in the middle of another's turn."""
    ledger = PromptLedger()
    one, two = tickets(ledger, "one", "two")
    ledger.take(echo("one", 1))
    ledger.take(added("two", "id-two"))
    ledger.mark_lost()
    ledger.take(removed("foreign"))
    ledger.take(end("foreign", 2, "cancelled"))
    assert not one.settled
    assert not two.settled
    ledger.take(removed("id-two"))
    ledger.take(end("id-two", 3, "cancelled"))
    assert two.result() == PromptResult("cancelled")
    ledger.take(end("id-one", 4))
    assert one.result() == PromptResult("end_turn")


def test_missing_events_make_the_turn_unknown() -> None:
    """CLI-025: after a gap the running turn may be another one."""
    ledger = PromptLedger()
    one, _two = tickets(ledger, "one", "two")
    ledger.mark_lost()
    ledger.take(echo("one", 1))
    ledger.take(Event("state_resync_required", {}))
    ledger.take(end("a", 9))
    assert not one.settled
    ledger.forget_ids()
    ledger.take(echo("one", 1))
    ledger.take(end("b", 2))
    assert one.settled


def test_an_abandoned_prompt_is_cancelled_when_its_turn_comes() -> None:
    """CLI-002: a cancel ends the running turn, so it is only sent for the oldest prompt."""
    cancelled: list[Ticket] = []
    ledger = PromptLedger(cancelled.append)
    one, two, three = tickets(ledger, "1", "2", "3")
    one.accepted = two.accepted = True
    assert not ledger.abandon(two)
    assert ledger.abandon(one)
    one.settle(PromptResult("cancelled"))
    assert cancelled == [two]
    two.settle(PromptResult("cancelled"))
    assert cancelled == [two]
    ledger.discard(three)
    assert len(ledger) == 0


def test_a_cancel_that_may_have_overtaken_its_prompt_is_sent_again() -> None:
    """CLI-002: only when the turn begins it is certain what a cancel hits; and then it is sent once."""
    cancelled: list[Ticket] = []
    ledger = PromptLedger(cancelled.append)
    (one,) = tickets(ledger, "1")
    assert ledger.abandon(one)
    assert cancelled == []
    ledger.take(echo("1", 1))
    ledger.take(echo("1", 2))
    assert cancelled == [one]


def test_settling_twice_changes_nothing() -> None:
    """CLI-013."""
    ticket = Ticket()
    ticket.settle(PromptResult("end_turn"))
    ticket.fail(RuntimeError())
    ticket.settle(PromptResult("refusal"))
    assert ticket.result() == PromptResult("end_turn")
