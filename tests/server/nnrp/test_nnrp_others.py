"""Results of what others do: where a turn's text stands, wherever its follower begins (nnrp-extensions, Token chunks)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from protocol.nnrp.bodies import DataBody
from protocol.nnrp.extensions import ALL_FEATURES
from protocol.nnrp.machines.credit import UNLIMITED, Window
from protocol.nnrp.machines.session import Session as Machine
from protocol.nnrp.machines.terms import SessionTerms
from protocol.nnrp.packet import decode_packet
from protocol.nnrp.payloads import TokenChunk
from server.nnrp.others import Others
from sessions import Event, Limits
from sessions.events import EventType
from sessions.ring import Ring


class WatchedRing(Ring):
    """Counts what is read of it."""

    __slots__ = ("looked",)

    def __init__(self) -> None:
        super().__init__(Limits(), "e", lambda: 0)
        self.looked = 0

    def read(self, after: int, limit: int) -> list[Event]:
        found = super().read(after, limit)
        self.looked += len(found)
        return found

    def tell(self, prompt_id: str, type: str, data: Mapping[str, Any]) -> Event:
        event = self.publish(type, data, prompt_id=prompt_id)
        assert event is not None
        return event

    def say(self, prompt_id: str, text: str) -> Event:
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
        return self.tell(prompt_id, EventType.SESSION_UPDATE, {"update": update})


def span(others: Others, event: Event) -> tuple[int, int]:
    """Which positions of its turn the result of ``event`` covers."""
    terms = SessionTerms(profile_id=2, schema_id=0x1001, schema_version=3, features=int(ALL_FEATURES))
    parts = others.parts(Machine(5, terms, Window(UNLIMITED), Window(UNLIMITED)), event)
    assert parts is not None
    packet = decode_packet(b"".join(parts), granted=ALL_FEATURES)
    assert isinstance(packet.content, DataBody)
    hint = TokenChunk.parse(packet.content.regions.payloads[0], hints=True).hint
    assert hint is not None
    return hint.sequence_start, hint.sequence_end


def test_positions_go_on_in_the_middle_of_a_turn() -> None:
    """A follower that begins there counts what its turn has said before, and nothing else: not what waits, nor its end."""
    ring, (first, turn, waiting) = WatchedRing(), (str(uuid.UUID(int=each)) for each in (1, 2, 3))
    ring.say(first, "another turn")
    ring.tell(first, EventType.TURN_COMPLETE, {"stopReason": "end_turn"})
    ring.say(turn, "four")
    ring.tell(waiting, EventType.TURN_COMPLETE, {"stopReason": "cancelled"})
    ring.say(turn, "sixsix")
    assert span(Others(ring), ring.say(turn, "abc")) == (10, 13)


def test_a_turn_is_not_looked_for_in_all_that_was_before_it() -> None:
    ring, (first, turn) = WatchedRing(), (str(uuid.UUID(int=each)) for each in (1, 2))
    for _ in range(1000):
        ring.say(first, "x")
    ring.tell(first, EventType.TURN_COMPLETE, {"stopReason": "end_turn"})
    assert span(Others(ring), ring.say(turn, "abc")) == (0, 3)
    assert ring.looked < 10
