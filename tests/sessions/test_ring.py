"""The ring and its readers: acp-http.md 1.1, architecture.md 3."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from sessions import Event, Limits, Notice, NoticeType, Ring, Subscription
from sessions.errors import SubscriberLimitExceeded
from sessions.events import EVENT_OVERHEAD
from sessions.recovery import RingState, plan_resume


def make_ring(**limits: Any) -> Ring:
    return Ring(Limits(**limits), "epoch-1", itertools.count(1000).__next__)


def fill(ring: Ring, count: int, size: int = 2) -> None:
    for _ in range(count):
        ring.publish("session_update", {"x": "y" * size})


def drain(subscription: Subscription) -> list[Event | Notice]:
    items: list[Event | Notice] = []
    while True:
        try:
            batch = subscription.take_nowait()
        except trio.WouldBlock:
            return items
        if not batch:
            return items
        items += batch


def shape(items: list[Event | Notice]) -> list[Any]:
    return [item.id if isinstance(item, Event) else str(item.type) for item in items]


def test_ids_start_at_one_and_grow_by_one() -> None:
    """ACP-010."""
    ring = make_ring()
    assert [ring.publish("t", {}).id for _ in range(3)] == [1, 2, 3]  # type: ignore[union-attr]


def test_unserialisable_event_consumes_no_id() -> None:
    """ACP-010: an event that cannot be serialised consumes no id, and is not swallowed in silence."""
    told: list[str] = []
    ring = Ring(Limits(), "e", lambda: 0, on_unserialisable=lambda type, _: told.append(type))
    assert ring.publish("bad", {"x": object()}) is None
    event = ring.publish("good", {})
    assert event is not None
    assert event.id == 1
    assert told == ["bad"]
    assert ring.statistics().unserialisable == 1


def test_oldest_is_dropped_by_count() -> None:
    """ACP-011."""
    ring = make_ring(event_ring_size=3)
    fill(ring, 10)
    assert [event.id for event in ring.read(0, 99)] == [8, 9, 10]
    assert ring.waterline == 8


def test_oldest_is_dropped_by_bytes_but_the_newest_stays() -> None:
    """C-097: the bound in bytes does not depend on the size of an event."""
    ring = make_ring(ring_bytes=10_000)
    fill(ring, 50, size=1000)
    assert ring.statistics().bytes <= 10_000
    ring.publish("huge", {"x": "y" * 50_000})
    assert [event.id for event in ring.read(0, 99)] == [51]


def test_encoded_forms_count_against_the_bytes() -> None:
    ring = make_ring(ring_bytes=4 * (100 + EVENT_OVERHEAD))
    fill(ring, 4, size=50)
    before = ring.statistics().events
    for event in ring.read(0, 99):
        ring.form(event, "wire", lambda event: b"z" * 300)
    assert ring.statistics().events < before
    assert ring.statistics().bytes <= 4 * (100 + EVENT_OVERHEAD)


def test_a_form_is_made_once() -> None:
    """architecture.md 3: encoded at most once per wire form, shared by every subscriber."""
    ring = make_ring()
    event = ring.publish("t", {})
    assert event is not None
    made: list[int] = []

    def make(event: Event) -> bytes:
        made.append(event.id)
        return b"frame"

    assert [ring.form(event, "rest", make) for _ in range(50)] == [b"frame"] * 50
    assert made == [1]
    ring.form(event, "acp", make)
    assert made == [1, 1]


@given(size=st.integers(1, 40), published=st.integers(0, 200), after=st.integers(0, 210), limit=st.integers(1, 50))
def test_read_is_a_slice_of_the_ids(size: int, published: int, after: int, limit: int) -> None:
    """Whatever was dropped: ids after the cursor that are still held, in order, at most ``limit``."""
    ring = make_ring(event_ring_size=size)
    fill(ring, published)
    held = range(max(1, published - size + 1), published + 1)
    assert [event.id for event in ring.read(after, limit)] == [each for each in held if each > after][:limit]


def test_reading_survives_compaction() -> None:
    ring = make_ring(event_ring_size=700)
    fill(ring, 5000)
    assert [event.id for event in ring.read(0, 10_000)] == list(range(4301, 5001))


@pytest.mark.parametrize(
    ("cursor", "epoch", "after", "resync"),
    [
        (5, None, 5, None),
        (10, None, 10, None),
        (4, None, 4, None),
        (3, None, 3, "ring_evicted"),
        (0, None, 0, "ring_evicted"),
        (11, None, 0, "epoch_reset"),
        (7, "other", 0, "epoch_reset"),
        (7, "mine", 7, None),
    ],
)
def test_resume_decision(cursor: int, epoch: str | None, after: int, resync: str | None) -> None:
    """ACP-015, with a ring that holds 5…10: a cursor equal to the head is not a resync."""
    plan = plan_resume(RingState("mine", head=10, waterline=5), cursor, epoch)
    assert plan.after == after
    assert (plan.resync or {}).get("reason") == resync
    if plan.resync is not None:
        assert plan.resync["lastDeliveredId"] == cursor
        assert plan.resync["earliestAvailableId"] == 5
        assert plan.resync.get("detail") == ("epoch_mismatch" if epoch == "other" else None)


def test_resume_decision_of_an_emptied_ring() -> None:
    """ACP-015: ids were handed out, none is held."""
    plan = plan_resume(RingState("mine", head=10, waterline=11), 3, None)
    assert plan.resync == {
        "reason": "seeded_replay_not_in_ring",
        "lastDeliveredId": 3,
        "earliestAvailableId": 11,
    }


def test_replay_then_live() -> None:
    """ACP-012, ACP-016, C-001."""
    ring = make_ring()
    fill(ring, 10)
    subscription = ring.subscribe(4)
    assert subscription.replaying
    items = drain(subscription)
    assert shape(items) == [5, 6, 7, 8, 9, 10, "replay_complete"]
    assert items[-1].data == {"replayedCount": 6, "lastReplayedEventId": 10, "lastEventId": 10}
    fill(ring, 1)
    assert shape(drain(subscription)) == [11]


def test_replay_of_nothing_is_completed_too() -> None:
    """ACP-016: without a replayed event there is no last id."""
    ring = make_ring()
    fill(ring, 3)
    assert [item.data for item in drain(ring.subscribe(3))] == [{"replayedCount": 0}]


def test_without_a_cursor_live_only() -> None:
    """ACP-012, ACP-113."""
    ring = make_ring()
    fill(ring, 10)
    subscription = ring.subscribe()
    assert drain(subscription) == []
    fill(ring, 2)
    assert shape(drain(subscription)) == [11, 12]


def test_event_between_subscribe_and_first_take_is_delivered_once() -> None:
    """ACP-013."""
    ring = make_ring()
    fill(ring, 2)
    subscription = ring.subscribe(0)
    fill(ring, 2)
    assert shape(drain(subscription)) == [1, 2, "replay_complete", 3, 4]


def test_eviction_is_announced_first() -> None:
    """ACP-015, C-005."""
    ring = make_ring(event_ring_size=16)
    fill(ring, 100)
    items = drain(ring.subscribe(10))
    assert shape(items) == ["state_resync_required", *range(85, 101), "replay_complete"]
    assert items[0].data == {"reason": "ring_evicted", "lastDeliveredId": 10, "earliestAvailableId": 85}


def test_a_gap_that_opens_during_the_replay_is_announced() -> None:
    """Never skip silently: events replayed slowly may leave the ring meanwhile."""
    ring = make_ring(event_ring_size=1200)
    fill(ring, 1200)
    subscription = ring.subscribe(0)
    first = subscription.take_nowait()
    assert shape(first)[-1] == 512
    fill(ring, 1000)
    rest = drain(subscription)
    assert shape(rest)[:2] == ["state_resync_required", 1001]
    assert rest[0].data["lastDeliveredId"] == 512
    assert rest[0].data["earliestAvailableId"] == 1001


def test_a_replay_that_leaves_the_ring_entirely_is_announced() -> None:
    ring = make_ring(event_ring_size=10, max_queued_events=1000)
    fill(ring, 10)
    subscription = ring.subscribe(5)
    fill(ring, 10)
    items = drain(subscription)
    assert shape(items) == ["state_resync_required", "replay_complete", *range(11, 21)]
    assert items[0].data == {"reason": "ring_evicted", "lastDeliveredId": 5, "earliestAvailableId": 11}


def test_replay_budget() -> None:
    """ACP-015: told after the replayed part, before replay_complete; at least one event is replayed."""
    ring = make_ring(replay_bytes=300, ring_bytes=10**9)
    fill(ring, 10, size=100)
    items = drain(ring.subscribe(0))
    assert shape(items) == [1, 2, "state_resync_required", "replay_complete"]
    assert items[2].data == {"reason": "replay_budget_exceeded", "lastDeliveredId": 2, "earliestAvailableId": 3}
    assert items[3].data["replayedCount"] == 2
    fill(ring, 1)
    big = make_ring(replay_bytes=10)
    fill(big, 2, size=100)
    assert shape(drain(big.subscribe(0))) == [1, "state_resync_required", "replay_complete"]


def test_replay_does_not_count_against_the_queue() -> None:
    """ACP-017."""
    ring = make_ring(max_queued_events=16)
    fill(ring, 500)
    subscription = ring.subscribe(0)
    assert shape(drain(subscription)) == [*range(1, 501), "replay_complete"]
    assert not subscription.evicted


def test_warned_once_and_rearmed() -> None:
    """ACP-018: at 75 %, again only after falling to 37.5 %."""
    ring = make_ring(max_queued_events=2048)
    subscription = ring.subscribe()
    fill(ring, 1600)
    first = subscription.take_nowait()
    assert shape(first) == ["slow_client_warning", *range(1, 513)]
    assert first[0].data["threshold"] == "frames"
    assert first[0].data["queueSize"] == 1600
    assert first[0].data["maxQueued"] == 2048
    fill(ring, 600)
    assert shape(subscription.take_nowait()) == list(range(513, 1025)), "82 % again, and told already"
    drain(subscription)
    fill(ring, 1600)
    assert shape(subscription.take_nowait())[0] == "slow_client_warning"


def test_overflow_evicts_one_reader_only() -> None:
    """ACP-018, ACP-019, C-027: also a reader that fell from idle to evicted between two looks is warned first."""
    ring = make_ring(max_queued_events=16)
    slow, healthy = ring.subscribe(), ring.subscribe()
    seen: list[Any] = []
    for _ in range(40):
        fill(ring, 1)
        seen += shape(drain(healthy))
    assert [each for each in seen if isinstance(each, int)] == list(range(1, 41))
    items = drain(slow)
    assert shape(items) == ["slow_client_warning", *range(1, 17), "client_evicted"]
    assert items[0].data["queueSize"] == 16
    assert items[-1].data["reason"] == "queue_overflow"
    assert items[-1].data["maxQueued"] == 16
    assert slow.ended
    assert slow.evicted
    assert slow.take_nowait() == []
    assert ring.statistics().subscribers == 1
    assert ring.statistics().evicted == 1


def test_overflow_by_bytes() -> None:
    """ACP-019; one event is always admitted (ACP-017)."""
    ring = make_ring(max_queued_bytes=1000)
    subscription = ring.subscribe()
    ring.publish("t", {"x": "y" * 5000})
    assert shape([item for item in drain(subscription) if isinstance(item, Event)]) == [1]
    fill(ring, 3, size=600)
    items = drain(subscription)
    assert items[-1].type == NoticeType.CLIENT_EVICTED
    assert items[-1].data["reason"] == "queue_bytes_overflow"


def test_a_stuck_reader_is_noticed_without_taking() -> None:
    """C-026: eviction is decided while the reader's socket is blocked."""
    ring = make_ring(max_queued_events=16)
    subscription = ring.subscribe()
    overdue: list[int] = []
    subscription.on_overdue = lambda: overdue.append(ring.head)
    fill(ring, 40)
    assert len(overdue) == 1
    assert 16 < overdue[0] <= 16 + 5


@pytest.mark.parametrize("taking", [False, True])
def test_an_eviction_is_counted_and_told_once(taking: bool) -> None:
    """Wherever it is decided: while the reader is stuck, or as it takes (ACP-019)."""
    told: list[int] = []
    ring = Ring(Limits(max_queued_events=1000, max_queued_bytes=1000), "e", lambda: 0, on_evicted=told.append)
    subscription = ring.subscribe()
    fill(ring, 3 if taking else 251, size=600)
    assert told == ([] if taking else [0])
    drain(subscription)
    drain(subscription)
    assert told == [0]
    assert ring.statistics().evicted == 1


def test_subscriber_limit_frees_its_places() -> None:
    """ACP-017, C-029."""
    ring = make_ring(max_subscribers=2)
    first = ring.subscribe()
    ring.subscribe()
    with pytest.raises(SubscriberLimitExceeded):
        ring.subscribe()
    first.close()
    first.close()
    ring.subscribe()


async def test_one_swapped_event_wakes_all() -> None:
    ring = make_ring()
    got: list[int] = []

    async def reader(subscription: Subscription) -> None:
        for item in await subscription.take():
            assert isinstance(item, Event)
            got.append(item.id)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(reader, ring.subscribe())
        await trio.testing.wait_all_tasks_blocked()
        fill(ring, 1)
    assert got == [1] * 20


async def test_cancelled_take_loses_nothing() -> None:
    ring = make_ring()
    subscription = ring.subscribe()
    with trio.move_on_after(0):
        await subscription.take()
    fill(ring, 1)
    assert shape(await subscription.take()) == [1]


async def test_close_delivers_what_is_left_then_ends() -> None:
    ring = make_ring()
    fill(ring, 2)
    subscription = ring.subscribe(0)
    ring.close()
    assert shape(await subscription.take()) == [1, 2, "replay_complete"]
    assert await subscription.take() == []
    with pytest.raises(RuntimeError):
        ring.publish("t", {})
    ring.reopen()
    event = ring.publish("t", {})
    assert event is not None
    assert event.id == 3, "numbering goes on: an old cursor stays good"


def test_raw_data_is_taken_as_it_is() -> None:
    ring = make_ring()
    event = ring.publish("t", msgspec.Raw(b'{"a":1}'))
    assert event is not None
    assert event.data == b'{"a":1}'
    assert event.value() == {"a": 1}


def test_consumers_are_told_from_mere_readers() -> None:
    """ACP-178, X-Moorline-Stream-Role."""
    ring = make_ring()
    ring.subscribe(consumer=False)
    assert ring.consumers() == 0
    ring.subscribe()
    assert ring.consumers() == 1


@settings(max_examples=200)
@given(st.data())
def test_any_interleaving_is_gapless_or_says_so(data: st.DataObject) -> None:
    """ACP-013, ACP-137: whatever is published, taken, dropped and resumed in whatever order, a reader that continues from its
    cursor sees every id once and in order, or is told where the gap is."""
    ring = make_ring(event_ring_size=data.draw(st.integers(4, 60)), max_queued_events=16)
    subscription = ring.subscribe(0)
    expected = 1
    for _ in range(data.draw(st.integers(1, 40))):
        action = data.draw(st.sampled_from(["publish", "take", "reconnect"]))
        if action == "publish":
            fill(ring, data.draw(st.integers(1, 12)))
        elif action == "reconnect" or subscription.ended:
            subscription.close()
            subscription = ring.subscribe(expected - 1, epoch="epoch-1")
        else:
            try:
                items = subscription.take_nowait()
            except trio.WouldBlock:
                continue
            for item in items:
                if isinstance(item, Event):
                    assert item.id == expected
                    expected += 1
                elif item.type == NoticeType.STATE_RESYNC_REQUIRED:
                    assert item.data["lastDeliveredId"] == expected - 1
                    expected = item.data["earliestAvailableId"]
