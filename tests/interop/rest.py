"""A REST client of about a page on `http.client`: it shares no code with the server under test or with the real client."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import msgspec

__all__ = ["Event", "Rest", "RestError", "text_of", "updates_of"]

Event = dict[str, Any]
_TIMEOUT_S = 30.0


class RestError(Exception):
    """An answer outside 200..299; `status` and the decoded `body` are kept."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"{status} {body}")
        self.status = status
        self.body = body


class Rest:
    """Calls against one base URL, each on a connection of its own."""

    def __init__(self, url: str) -> None:
        self._netloc = urlsplit(url).netloc

    def call(self, method: str, path: str, body: object = None) -> Any:
        """The decoded answer, None for an empty one. Raises `RestError`."""
        connection = http.client.HTTPConnection(self._netloc, timeout=_TIMEOUT_S)
        try:
            data = None if body is None else msgspec.json.encode(body)
            connection.request(method, path, data, {} if data is None else {"Content-Type": "application/json"})
            response = connection.getresponse()
            raw = response.read()
            value = msgspec.json.decode(raw) if raw else None
        finally:
            connection.close()
        if not 200 <= response.status < 300:
            raise RestError(response.status, value)
        return value

    def create(self, **fields: object) -> str:
        """A new session's id."""
        session_id = self.call("POST", "/session", {"sessionScope": "thread", **fields})["sessionId"]
        assert isinstance(session_id, str)
        return session_id

    def submit(self, session_id: str, text: str) -> str:
        """Prompts without waiting; the prompt's id."""
        accepted = self.call("POST", f"/session/{session_id}/prompt", {"prompt": [{"type": "text", "text": text}]})
        prompt_id = accepted["promptId"]
        assert isinstance(prompt_id, str)
        return prompt_id

    @contextmanager
    def stream(self, session_id: str, after: int = 0) -> Iterator[Iterator[Event]]:
        """Every event after `after`, then live ones, until the server ends the stream; it is open when the block begins."""
        connection = http.client.HTTPConnection(self._netloc, timeout=_TIMEOUT_S)
        try:
            headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
            connection.request("GET", f"/session/{session_id}/events", headers=headers)
            response = connection.getresponse()
            if response.status != 200:
                raise RestError(response.status, response.read())
            yield (msgspec.json.decode(line[5:]) for line in response if line.startswith(b"data:"))
        finally:
            connection.close()

    def until(self, session_id: str, wanted: Callable[[Event], bool], after: int = 0) -> list[Event]:
        """Published and control events after `after`, up to and including the first that `wanted` accepts."""
        with self.stream(session_id, after) as events:
            return self.up_to(events, wanted)

    def up_to(self, events: Iterator[Event], wanted: Callable[[Event], bool]) -> list[Event]:
        """What an open stream gives, up to and including the first event that `wanted` accepts."""
        seen: list[Event] = []
        for event in events:
            seen.append(event)
            if wanted(event):
                return seen
        raise AssertionError(f"the stream ended before the wanted event: {[event['type'] for event in seen]}")

    def turn(self, session_id: str, text: str, answer: Callable[[Event], str] | None = None) -> list[Event]:
        """One turn's events, its `turn_complete` or `turn_error` last; `answer` chooses the option of a permission request.

        The stream is open before the prompt is sent: a request nobody could answer is answered by the server (ACP-178).
        """
        with self.stream(session_id) as stream:
            prompt_id = self.submit(session_id, text)

            def ends(event: Event) -> bool:
                if event["type"] == "permission_request" and event["promptId"] == prompt_id and answer is not None:
                    self.vote(session_id, event, answer(event))
                return event["type"] in ("turn_complete", "turn_error") and event["data"].get("promptId") == prompt_id

            events = self.up_to(stream, ends)
        return [event for event in events if event.get("promptId") == prompt_id or event is events[-1]]

    def vote(self, session_id: str, request: Event, option_id: str) -> None:
        outcome = {"outcome": "selected", "optionId": option_id}
        self.call("POST", f"/session/{session_id}/permission/{request['data']['requestId']}", {"outcome": outcome})


def updates_of(events: list[Event], kind: str) -> list[Any]:
    """The `update` objects of one `sessionUpdate` kind, in order."""
    updates = (event["data"]["update"] for event in events if event["type"] == "session_update")
    return [update for update in updates if update["sessionUpdate"] == kind]


def text_of(events: list[Event]) -> str:
    """The text the agent said."""
    return "".join(update["content"]["text"] for update in updates_of(events, "agent_message_chunk"))
