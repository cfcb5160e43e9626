"""A published event as the wires that speak JSON show it (REST-084)."""

from __future__ import annotations

from functools import lru_cache

from sessions.events import Event, encode

__all__ = ["envelope", "names_of"]


def envelope(event: Event) -> bytes:
    """``{id, v, type, data, promptId?, originatorClientId?, _meta}`` as one line of JSON."""
    data = event.data
    if b"\n" in data or b"\r" in data:
        # Only white space between tokens can be a line end in valid JSON.
        data = data.replace(b"\r", b" ").replace(b"\n", b" ")
    return b'{"id":%d,"v":1,"type":%b,"data":%b%b,"_meta":{"serverTimestamp":%d}}' % (
        event.id,
        names_of(event.type)[1],
        data,
        _who(event.prompt_id, event.originator),
        event.timestamp,
    )


@lru_cache(maxsize=128)
def names_of(type: str) -> tuple[bytes, bytes]:
    """A type for its line in an event stream, and as JSON."""
    text = type.encode("utf-8", "replace").decode()
    # One made up by a runner must not be able to break out of its line.
    return (text if text.isprintable() else "event").encode(), encode(text)


@lru_cache(maxsize=1024)
def _who(prompt_id: str | None, originator: str | None) -> bytes:
    """The same for every event of a turn."""
    more = b""
    if prompt_id is not None:
        more = b',"promptId":' + encode(prompt_id)
    if originator is not None:
        more += b',"originatorClientId":' + encode(originator)
    return more
