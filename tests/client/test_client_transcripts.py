"""The client's eyes on recorded exchanges of the reference daemon: CLI-020, CLI-021, CLI-039, ACP-096."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client.acp_transport import AgentOffer
from client.events import Event, event_from_message, event_from_rest
from client.results import Capabilities, prompt_receipt, session_info, session_page
from protocol.jsonrpc import Notification, Request, Response, parse_message
from protocol.sse import SseDecoder, SseEvent

TRANSCRIPTS = sorted((Path(__file__).resolve().parents[1] / "vectors" / "acp-transcripts").glob("*.json"))


def steps(kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in TRANSCRIPTS:
        for step in json.loads(path.read_text(encoding="utf-8"))["steps"]:
            if step.get("kind") == kind:
                yield f"{path.stem}#{step['step']}", step


def frames(step: dict[str, Any], size: int = 1_000_000) -> list[SseEvent]:
    text = step["response"]["sse"].encode()
    decoder = SseDecoder()
    found = [e for i in range(0, len(text), size) for e in decoder.receive_data(text[i : i + size])]
    rest = decoder.receive_eof()
    return found if rest is None else [*found, rest]


def acp_events(step: dict[str, Any]) -> tuple[list[Event], list[Response]]:
    events, replies = [], []
    for frame in frames(step):
        message = parse_message(frame.data)
        if isinstance(message, Response):
            replies.append(message)
        else:
            assert isinstance(message, (Notification, Request)), frame
            event = event_from_message(message, frame.id)
            assert event is not None, frame
            events.append(event)
    return events, replies


STREAMS = list(steps("sse"))


def test_there_are_recordings() -> None:
    """The suite stands alone: the vectors are in the repository."""
    assert len(TRANSCRIPTS) == 16
    assert len(STREAMS) > 20


@pytest.mark.parametrize(("name", "step"), STREAMS, ids=[name for name, _ in STREAMS])
def test_every_recorded_frame_is_understood(name: str, step: dict[str, Any]) -> None:
    """CLI-020, CLI-021: no frame is a bad event; ids grow; a dangling id line is nothing; pieces of 7 bytes mean the
    same."""
    assert frames(step) == frames(step, 7)
    if "/events" in step["request"]["line"]:
        events = [event_from_rest(frame) for frame in frames(step)]
    else:
        events, _ = acp_events(step)
    ids = [event.id for event in events if event.id is not None]
    assert ids == sorted(set(ids))
    assert all(event.type for event in events)


def test_both_surfaces_show_the_same_events() -> None:
    """CLI-039, ACP-001: transcript 09 has the same session on /acp and on REST."""
    recorded = {name: step for name, step in STREAMS if name.startswith("09")}
    over_acp = {
        event.id: event
        for step in recorded.values()
        if "/acp" in step["request"]["line"]
        for event in acp_events(step)[0]
        if event.id is not None
    }
    over_rest = {
        event.id: event
        for step in recorded.values()
        if "/events" in step["request"]["line"]
        for event in map(event_from_rest, frames(step))
        if event.id is not None
    }
    common = over_acp.keys() & over_rest.keys()
    assert len(common) >= 10
    for event_id in common:
        mine, theirs = over_acp[event_id], over_rest[event_id]
        assert (mine.type, mine.session_id) == (theirs.type, theirs.session_id)
        assert mine.request_id == theirs.request_id
        if mine.type != "permission_request":
            assert mine.data == theirs.data
        else:
            assert mine.data["options"] == theirs.data["options"]
            assert mine.outbound_id is not None


def test_recorded_answers_become_results() -> None:
    """CLI-039, CLI-042: capabilities, create, prompt, list, load and initialize as the daemon answers them."""
    bodies: dict[str, list[Any]] = {}
    for _, step in steps("http"):
        response = step["response"]
        if response["status_line"].split()[1] in ("200", "202") and response["body"].startswith("{"):
            method, path, _ = step["request"]["line"].split()
            bodies.setdefault(f"{method} {path.split('?')[0].split('/')[-1]}", []).append(json.loads(response["body"]))
    limits = {Capabilities(body).max_pending_prompts_per_session for body in bodies["GET capabilities"]}
    assert limits == {5, None}
    assert all(Capabilities(body).transports == ("rest",) for body in bodies["GET capabilities"])
    created = [session_info(body) for body in bodies["POST session"]]
    assert {info.attached for info in created} == {True, False}
    assert all(info.client_id and info.workspace_cwd == "/home/project" for info in created)
    receipts = [prompt_receipt(body) for body in bodies["POST prompt"]]
    assert all(receipt.epoch and receipt.last_event_id is not None for receipt in receipts)
    loaded = [session_info(body) for body in bodies["POST load"]]
    assert all(info.history and info.last_event_id for info in loaded)
    assert all(session_info(body).history is None for body in bodies["POST resume"])
    page = session_page(bodies["GET sessions"][0])
    assert page.sessions[0].session_id
    offers = [AgentOffer(body["result"]) for body in bodies["POST acp"] if "agentCapabilities" in body["result"]]
    assert offers
    assert all(offer.connection_id and offer.moorline is None for offer in offers)
