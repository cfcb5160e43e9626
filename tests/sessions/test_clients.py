"""The client ids of a session: a bounded table (REST-004, REST-053)."""

from __future__ import annotations

import pytest

from sessions import Harbour, Limits
from sessions.clients import ClientTable
from sessions.errors import UnknownClient


def test_the_one_not_used_for_the_longest_time_goes() -> None:
    """REST-004: whoever uses its id, or says that it is there, keeps it."""
    table = ClientTable(3)
    for name in ("a", "b", "c"):
        table.add(name, 1)
    assert table.use("a")
    table.see("b", 2)
    table.add("d", 3)
    assert table == {"a": 1, "b": 2, "d": 3}
    assert not table.use("c")


def test_kept_ids_stay() -> None:
    """REST-004: what a connection holds is forgotten by it alone, even when the table is over its limit for that."""
    table = ClientTable(2)
    for name in ("a", "b", "c"):
        table.add(name, 1)
        table.keep(name)
    table.add("d", 1)
    table.add("e", 1)
    assert list(table) == ["a", "b", "c", "e"]
    assert table.drop("a")
    assert table.drop("b")
    assert not table.drop("b")
    table.add("b", 2)
    assert list(table) == ["c", "b"]
    table.add("f", 2)
    assert list(table) == ["c", "f"]


def test_no_limit() -> None:
    """REST-004: 0 is none."""
    table = ClientTable(0)
    for number in range(2000):
        table.add(str(number), number)
    assert len(table) == 2000


@pytest.mark.parametrize("limits", [Limits(max_clients=10)])
async def test_a_session_knows_so_many_clients(harbour: Harbour) -> None:
    """REST-004: a thousand who attached and never left cost no more than the limit; the latest are known."""
    first = await harbour.create()
    session = first.session
    ids = [session.register_client() for _ in range(1000)]
    assert list(session.clients) == ids[-10:]
    session.check_client(ids[-10])
    session.register_client()
    session.check_client(ids[-10])
    with pytest.raises(UnknownClient):
        session.check_client(ids[-9])
    with pytest.raises(UnknownClient):
        session.heartbeat(first.client_id)
