"""Ids and the calls that wait for them."""

from __future__ import annotations

from protocol.jsonrpc import PendingCalls


def test_ids_count_from_one_and_settle_once() -> None:
    """CLI-030: registered before it is sent, answered at most once."""
    calls: PendingCalls[str] = PendingCalls()
    assert [calls.register("a"), calls.register("b")] == [1, 2]
    assert calls.settle(2) == "b"
    assert calls.settle(2) is None
    assert list(calls) == [1]


def test_foreign_ids_settle_nothing() -> None:
    """C-049: "1" is not 1; nor is true."""
    calls: PendingCalls[str] = PendingCalls()
    calls.register("a")
    for id in ("1", None, 7, True):
        assert calls.settle(id) is None
    assert len(calls) == 1


def test_forgotten_calls_are_not_answered() -> None:
    """CLI-002: the caller gave up."""
    calls: PendingCalls[str] = PendingCalls(prefix="q-")
    id = calls.register("a")
    assert id == "q-1"
    calls.forget(id)
    calls.forget(id)
    assert calls.settle(id) is None


def test_draining_takes_everyone() -> None:
    """CLI-001: a lost connection tells every waiter."""
    calls: PendingCalls[str] = PendingCalls()
    calls.register("a")
    calls.register("b")
    assert calls.drain() == ["a", "b"]
    assert calls.drain() == []
