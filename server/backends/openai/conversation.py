"""What a chat model must be told again with every request: the turns so far, within bounds."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec

__all__ = ["Conversation", "Shelf"]


class Conversation:
    """Messages of one session, oldest first. Whole turns are dropped from the front when a bound is passed."""

    def __init__(self, cwd: str, *, max_messages: int, max_bytes: int) -> None:
        self.cwd = cwd
        self.model: str | None = None
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._messages: list[tuple[dict[str, Any], int]] = []
        self.bytes = 0

    def messages(self) -> list[dict[str, Any]]:
        return [message for message, _ in self._messages]

    def add(self, message: dict[str, Any]) -> None:
        size = len(msgspec.json.encode(message))
        self._messages.append((message, size))
        self.bytes += size
        while len(self._messages) > 1 and (len(self._messages) > self._max_messages or self.bytes > self._max_bytes):
            self._drop_turn()

    def copy(self, cwd: str) -> Conversation:
        """The same turns, for a session that goes its own way from here."""
        other = Conversation(cwd, max_messages=self._max_messages, max_bytes=self._max_bytes)
        other._messages = list(self._messages)
        other.bytes, other.model = self.bytes, self.model
        return other

    def _drop_turn(self) -> None:
        self._pop_first()
        # A model must not find an answer without its question.
        while len(self._messages) > 1 and self._messages[0][0]["role"] != "user":
            self._pop_first()

    def _pop_first(self) -> None:
        _, size = self._messages.pop(0)
        self.bytes -= size


class Shelf:
    """Conversations of sessions that are closed and may be loaded again: the most recent ones, bounded twice."""

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._held: OrderedDict[str, Conversation] = OrderedDict()
        self._bytes = 0

    def put(self, session_id: str, conversation: Conversation) -> None:
        self.take(session_id)
        self._held[session_id] = conversation
        self._bytes += conversation.bytes
        while self._held and (len(self._held) > self._max_count or self._bytes > self._max_bytes):
            self.take(next(iter(self._held)))

    def take(self, session_id: str) -> Conversation | None:
        conversation = self._held.pop(session_id, None)
        if conversation is not None:
            self._bytes -= conversation.bytes
        return conversation

    def items(self) -> list[tuple[str, Conversation]]:
        return list(self._held.items())
