"""The client ids of one session: issued, used, forgotten."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from itertools import islice

__all__ = ["ClientTable"]


class ClientTable(Mapping[str, int]):
    """Client id → when it was last seen (wall clock, ms), in the order of last use (REST-004, REST-053).

    Nothing tells that the holder of an id is gone for good, so the table is bounded: beyond ``limit`` the id that was not
    used for the longest time is forgotten, but none that is kept. Its holder is answered as after a restart, with
    ``invalid_client_id``, and asks for a new one. ``limit`` 0: no limit.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seen: OrderedDict[str, int] = OrderedDict()
        self._kept: set[str] = set()

    def __getitem__(self, client_id: str) -> int:
        return self._seen[client_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._seen)

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, client_id: str, now_ms: int) -> None:
        """Issue an id."""
        self._seen[client_id] = now_ms
        if self._limit and len(self._seen) > self._limit:
            stale = (each for each in self._seen if each not in self._kept and each != client_id)
            for each in list(islice(stale, len(self._seen) - self._limit)):
                del self._seen[each]

    def keep(self, client_id: str) -> None:
        """This id is in somebody's hands who drops it at the end: it is not forgotten before."""
        if client_id in self._seen:
            self._kept.add(client_id)

    def use(self, client_id: str) -> bool:
        """The id was used. False if it is not here."""
        if client_id not in self._seen:
            return False
        self._seen.move_to_end(client_id)
        return True

    def see(self, client_id: str, now_ms: int) -> None:
        """Its holder said that it is there (REST-053)."""
        self._seen[client_id] = now_ms
        self._seen.move_to_end(client_id)

    def drop(self, client_id: str) -> bool:
        """Forget an id. False if it is not here."""
        self._kept.discard(client_id)
        return self._seen.pop(client_id, None) is not None

    def clear(self) -> None:
        self._seen.clear()
        self._kept.clear()
