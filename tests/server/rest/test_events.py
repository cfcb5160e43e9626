"""The event stream: bytes, cursors, notices, ends (rest.md section 6)."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from server.routes.rest import events as events_module
from server.routes.rest.frames import HIDDEN, envelope, frame
from server.routes.rest.shapes import SHAPES
from sessions import EventType, Limits, NoticeType
from sessions.ring import Ring
from tests.server.rest.api import Api, Frame
from tests.server.rest.conftest import StartApi

UNKNOWN = "00000000-0000-4000-8000-00000000dead"


@pytest.fixture
async def session_id(api: Api) -> str:
    return str((await api.create())["sessionId"])


# Before the stream starts


@pytest.mark.parametrize("value", ["5", "15", "2049", "0", "99999999"])
async def test_max_queued_out_of_range(api: Api, session_id: str, value: str) -> None:
    """REST-080, T07."""
    reply = await api.get(f"/session/{session_id}/events?maxQueued={value}")
    assert reply.status == 400
    assert reply.json()["code"] == "invalid_max_queued"
    if len(value) < 6:
        assert reply.json()["error"] == "`maxQueued` must be in [16, 2048]"


@pytest.mark.parametrize("value", ["", "abc", "1e3", "+20", "20.0", "-20", "0x20", "%2020"])
async def test_max_queued_is_decimal(api: Api, session_id: str, value: str) -> None:
    """REST-080."""
    reply = await api.get(f"/session/{session_id}/events?maxQueued={value}")
    assert (reply.status, reply.json()["code"]) == (400, "invalid_max_queued")


@pytest.mark.parametrize("value", [16, 2048])
async def test_max_queued_is_the_readers_bound(api: Api, session_id: str, value: int) -> None:
    """REST-080."""
    async with api.events(session_id, f"?maxQueued={value}&connectReason=x&previousStreamId=y"):
        subscription = next(iter(api.session(session_id).ring._subscribers))
        assert subscription.max_events == value


async def test_unknown_session(api: Api) -> None:
    """REST-082, T07."""
    reply = await api.get(f"/session/{UNKNOWN}/events", Accept="text/event-stream")
    assert reply.status == 404
    assert reply.json() == {
        "error": f'No session with id "{UNKNOWN}"',
        "code": "session_not_found",
        "sessionId": UNKNOWN,
    }


async def test_too_many_readers(api: Api, session_id: str) -> None:
    """REST-082, C-029: 64, then 429; a place that is left can be taken."""
    from contextlib import AsyncExitStack

    async with AsyncExitStack() as stack:
        for _ in range(63):
            await stack.enter_async_context(api.events(session_id))
        async with api.events(session_id):
            reply = await api.get(f"/session/{session_id}/events")
            assert (reply.status, reply.headers["retry-after"]) == (429, "5")
            body = reply.json()
            assert (body["code"], body["limit"]) == ("subscriber_limit_exceeded", 64)
        await stack.enter_async_context(api.events(session_id))
    assert api.session(session_id).ring.subscribers == 0


async def test_readers_that_leave_before_they_read_leave_no_place_taken(api: Api, session_id: str) -> None:
    """C-030."""
    for _ in range(200):
        async with api.driver.stream("GET", f"/session/{session_id}/events"):
            pass
    assert api.session(session_id).ring.subscribers == 0


async def test_head_opens_no_stream(api: Api, session_id: str) -> None:
    """A HEAD on the stream has the stream's headers and no reader."""
    reply = await api.call("HEAD", f"/session/{session_id}/events")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/event-stream")
    assert api.session(session_id).ring.subscribers == 0


# Bytes


async def test_headers_and_first_bytes(api: Api, session_id: str) -> None:
    """REST-083, REST-084, C-031: at once, although nothing has happened."""
    async with api.driver.stream(
        "GET", f"/session/{session_id}/events", headers=[("accept-encoding", "gzip, br")]
    ) as stream:
        head = await stream.head()
        assert await stream.read() == b"retry: 3000\n\n"
    assert head.headers["content-type"] == "text/event-stream"
    assert head.headers["cache-control"] == "no-cache, no-transform"
    assert head.headers["x-accel-buffering"] == "no"
    assert head.headers["x-qwen-event-epoch"] == api.session(session_id).ring.epoch
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", head.headers["x-qwen-sse-stream-id"])
    assert "content-length" not in head.headers
    assert "content-encoding" not in head.headers


async def test_stream_ids_differ(api: Api, session_id: str) -> None:
    """REST-083."""
    async with api.events(session_id) as one, api.events(session_id) as two:
        assert one.headers["x-qwen-sse-stream-id"] != two.headers["x-qwen-sse-stream-id"]


async def test_heartbeat(api: Api, session_id: str, autojump_clock: MockClock) -> None:
    """REST-084: a comment every 15 s."""
    async with api.driver.stream("GET", f"/session/{session_id}/events") as stream:
        await stream.head()
        await stream.read()
        begun = trio.current_time()
        assert [await stream.read(), await stream.read()] == [b": heartbeat\n\n"] * 2
        assert trio.current_time() - begun == pytest.approx(30, abs=0.01)


async def test_frame_bytes(api: Api, session_id: str) -> None:
    """REST-084, REST-085: id, event, data, blank line; the envelope's id is the line's."""
    await api.run(session_id, "fine")
    frames = await api.replay(session_id)
    assert frames[0].names == ["id", "event", "data"]
    last = frames[2]
    assert last.raw.startswith(b"id: 3\nevent: turn_complete\ndata: {")
    value = last.value
    assert set(value) == {"id", "v", "type", "data", "promptId", "_meta"}
    assert (value["id"], value["v"], value["type"]) == (3, 1, "turn_complete")
    assert isinstance(value["_meta"]["serverTimestamp"], int)


async def test_notices_have_no_id(api: Api, session_id: str) -> None:
    """REST-084, ACP-020, C-009: neither line nor field, and none consumed."""
    await api.run(session_id, "fine")
    async with api.events(session_id, Last_Event_ID="99") as stream:
        frames = await stream.until("replay_complete")
        await api.run(session_id, "fine")
        after = await stream.next()
    for each in (frames[0], frames[-1]):
        assert each.names == ["event", "data"]
        assert set(each.value) == {"v", "type", "data", "_meta"}
        assert isinstance(each.value["_meta"]["serverTimestamp"], int)
    assert after.id == 4


async def test_agent_text_cannot_forge_frames(api: Api, session_id: str) -> None:
    """C-044."""
    text = "x\r\nevent: hack\rid: 999\n\ndata: {}\n\n"
    await api.run(session_id, text)
    frames = await api.replay(session_id)
    assert [each.id for each in frames] == [1, 2, 3, None]
    assert frames[1].data["update"]["content"]["text"] == text
    assert b"\r" not in frames[1].raw


def test_line_ends_in_raw_data_are_taken_out() -> None:
    """C-044: an agent's own line may have white space between its tokens."""
    ring = Ring(Limits(), "e", lambda: 7)
    event = ring.publish("session_update", msgspec.Raw(b'{"a":\r\n1}'))
    assert event is not None
    assert msgspec.json.decode(envelope(event))["data"] == {"a": 1}
    assert frame(event).count(b"\n") == 4


def test_a_made_up_type_cannot_break_out_of_its_line() -> None:
    """C-044, for an embedder's own event types."""
    ring = Ring(Limits(), "e", lambda: 7)
    event = ring.publish("odd\nid: 5", {"a": 1})
    assert event is not None
    parsed = Frame(frame(event).removesuffix(b"\n\n"))
    assert parsed.names == ["id", "event", "data"]
    assert parsed.value["type"] == "odd\nid: 5"


async def test_a_frame_is_made_once(api: Api, session_id: str) -> None:
    """Issue: encoded at most once per wire form, whoever reads."""
    await api.run(session_id, "many 5")
    session = api.session(session_id)
    first = await api.replay(session_id)
    made = [each.forms for each in session.ring.read(0, 100)]
    second = await api.replay(session_id)
    assert [each.raw for each in first[:-1]] == [each.raw for each in second[:-1]]
    assert all(form is not None for form in made)
    assert all(each.forms is form for each, form in zip(session.ring.read(0, 100), made, strict=True))


async def test_everything_pending_is_one_chunk(api: Api, session_id: str) -> None:
    """stack.md 3: one send for all that waits."""
    await api.run(session_id, "many 50")
    async with api.driver.stream("GET", f"/session/{session_id}/events", headers=[("last-event-id", "0")]) as stream:
        await stream.head()
        await stream.read()
        chunk = await stream.read()
    assert chunk.count(b"event: ") == 53  # with replay_complete
    assert chunk.endswith(b"\n\n")


async def test_events_of_other_wires_are_not_shown(api: Api, session_id: str) -> None:
    """``operation_state`` has an id in the common ring and no frame here; the cursor steps over it."""
    session = api.session(session_id)
    session.publish("operation_state", {"operationId": 7})
    await api.run(session_id, "fine")
    frames = await api.replay(session_id)
    assert [each.id for each in frames] == [2, 3, 4, None]
    loaded = (await api.post(f"/session/{session_id}/load")).json()
    assert [each["id"] for each in loaded["compactedReplay"]] == [2, 3, 4]


def test_every_type_has_a_shape() -> None:
    """rest.md 6.1: every stream of these tests is held against them (`tests.server.rest.api.check_shape`)."""
    assert set(SHAPES) == {*EventType, *NoticeType} - HIDDEN


# Cursors


async def test_plain_resume(api: Api, session_id: str) -> None:
    """C-001, ACP-012, ACP-016."""
    await api.run(session_id, "many 8")
    async with api.events(session_id, Last_Event_ID="4") as stream:
        frames = await stream.until("replay_complete")
        assert [each.id for each in frames] == [5, 6, 7, 8, 9, 10, None]
        assert frames[-1].data == {"replayedCount": 6, "lastReplayedEventId": 10, "lastEventId": 10}
        await api.submit(session_id, "fine")
        assert (await stream.next()).id == 11


REJECTED = [
    "abc",
    "",
    "-1",
    "+5",
    "1.0",
    "1e1",
    "0x5",
    "1_0",
    "5,6",
    "\xb2",
    "9007199254740993",
    "99999999999999999999999",
    "5 6",
]


@pytest.mark.parametrize("value", REJECTED)
async def test_rejected_cursors_are_live_only(api: Api, session_id: str, value: str) -> None:
    """C-008, ACP-111, ACP-112, REST-081: status 200, nothing replayed."""
    await api.run(session_id, "many 8")
    async with api.events(session_id, Last_Event_ID=value) as stream:
        await api.submit(session_id, "fine")
        assert (await stream.next()).id == 11


@pytest.mark.parametrize(("value", "first"), [("5", 6), ("005", 6), ("0", 1), ("10", None)])
async def test_accepted_cursors(api: Api, session_id: str, value: str, first: int | None) -> None:
    """ACP-111; a cursor at the head is no resync (ACP-015)."""
    await api.run(session_id, "many 8")
    frames = await api.replay(session_id, value)
    assert frames[0].id == first
    if first is None:
        assert frames[0].data == {"replayedCount": 0}


async def test_no_cursor_is_live_only(api: Api, session_id: str) -> None:
    """ACP-113: and no ``replay_complete``."""
    await api.run(session_id, "fine")
    async with api.events(session_id) as stream:
        await api.submit(session_id, "fine")
        assert (await stream.next()).id == 4


async def test_refused_cursors_are_logged_once(api: Api, session_id: str, caplog: pytest.LogCaptureFixture) -> None:
    """ACP-112, ACP-257: sanitised and clipped; nothing for an empty one."""
    async with api.events(session_id, Last_Event_ID="ab\x85c" + "d" * 200):
        pass
    async with api.events(session_id, Last_Event_ID=""):
        pass
    lines = [line for line in caplog.messages if "last_event_id_ignored" in line]
    assert len(lines) == 1
    assert "abcd" in lines[0]
    assert "d" * 65 not in lines[0]


async def test_eviction_from_the_ring_is_announced_first(start: StartApi) -> None:
    """C-005, T14."""
    async with start(event_ring_size=16) as api:
        session_id = (await api.create())["sessionId"]
        await api.run(session_id, "many 98")
        async with api.events(session_id, Last_Event_ID="10") as stream:
            frames = await stream.until("replay_complete")
            assert frames[0].type == "state_resync_required"
            assert frames[0].data == {"reason": "ring_evicted", "lastDeliveredId": 10, "earliestAvailableId": 85}
            assert [each.id for each in frames[1:-1]] == list(range(85, 101))
            await api.submit(session_id, "fine")
            assert (await stream.next()).id == 101


async def test_a_cursor_ahead_is_called_out(api: Api, session_id: str) -> None:
    """C-006."""
    await api.run(session_id, "many 8")
    async with api.events(session_id, Last_Event_ID="999") as stream:
        frames = await stream.until("replay_complete")
        assert frames[0].data["reason"] == "epoch_reset"
        assert [each.id for each in frames[1:-1]] == list(range(1, 11))
        await api.submit(session_id, "fine")
        assert (await stream.next()).id == 11


async def test_a_cursor_of_another_numbering(api: Api, session_id: str) -> None:
    """C-007, ACP-015: the epoch tells, however small the cursor."""
    await api.run(session_id, "many 8")
    frames = await api.replay(session_id, 5, X_Qwen_Event_Epoch="another-epoch")
    assert (frames[0].data["reason"], frames[0].data["detail"]) == ("epoch_reset", "epoch_mismatch")
    assert [each.id for each in frames[1:-1]] == list(range(1, 11))
    right = api.session(session_id).ring.epoch
    assert (await api.replay(session_id, 9, X_Qwen_Event_Epoch=right))[0].id == 10
    # Not a token: ignored (ACP-114).
    assert (await api.replay(session_id, 9, X_Qwen_Event_Epoch="not a token!"))[0].id == 10


async def test_resume_stays_in_its_session(api: Api, session_id: str) -> None:
    """C-010."""
    other = (await api.create())["sessionId"]
    await api.run(session_id, "A")
    await api.run(other, "many 48")
    async with api.events(session_id, Last_Event_ID="1") as stream:
        assert [each.id for each in await stream.until("replay_complete")] == [2, 3, None]
    frames = await api.replay(session_id, 40)
    assert frames[0].data["reason"] == "epoch_reset"
    assert [each.id for each in frames[1:-1]] == [1, 2, 3]
    assert all(each.data["sessionId"] == session_id for each in frames[1:-1])


async def test_two_readers_get_everything(api: Api, session_id: str) -> None:
    """C-011."""
    async with api.events(session_id) as one, api.events(session_id) as two:
        await api.run(session_id, "many 100")
        first = await one.until("turn_complete")
        second = await two.until("turn_complete")
    third = await api.replay(session_id)
    assert [each.raw for each in first] == [each.raw for each in second] == [each.raw for each in third[:-1]]
    assert len(first) == 102


async def test_a_hundred_reconnects(api: Api, session_id: str) -> None:
    """C-013."""
    await api.run(session_id, "many 98")
    cursor, ids = 0, []
    for _ in range(100):
        async with api.events(session_id, Last_Event_ID=str(cursor)) as stream:
            cursor = (await stream.next()).id or -1
        ids.append(cursor)
    assert ids == list(range(1, 101))
    assert api.session(session_id).ring.subscribers == 0


async def test_drops_at_random_points(api: Api, session_id: str, autojump_clock: MockClock) -> None:
    """C-004: cut in the middle of a running turn, again and again."""
    import random

    dice = random.Random(5)
    await api.submit(session_id, "tick 100")
    cursor, ids, texts = 0, [], []
    done = False
    while not done:
        async with api.events(session_id, Last_Event_ID=str(cursor)) as stream:
            for _ in range(dice.randrange(1, 8)):
                got = await stream.next()
                if got.id is None:
                    continue
                ids.append(got.id)
                cursor = got.id
                update = got.data.get("update", {})
                if update.get("sessionUpdate") == "agent_message_chunk":
                    texts.append(update["content"]["text"])
                if got.type == "turn_complete":
                    done = True
                    break
        await trio.sleep(dice.random() / 3)
    assert ids == list(range(1, 103))
    assert "".join(texts) == "".join(f"{number} " for number in range(1, 101))


async def test_replay_budget(start: StartApi) -> None:
    """ACP-015 ``replay_budget_exceeded``: told after the part that fits, before ``replay_complete``; the reader goes on."""
    async with start(replay_bytes=4096) as api:
        session_id = (await api.create())["sessionId"]
        await api.run(session_id, "sized 20 500")
        ids: list[int] = []
        cursor = 0
        for _ in range(20):
            frames = await api.replay(session_id, cursor)
            ids += [each.id for each in frames if each.id is not None]
            cursor = ids[-1]
            if frames[-2].type != "state_resync_required":
                break
            assert frames[-2].data["reason"] == "replay_budget_exceeded"
            assert frames[-2].data["lastDeliveredId"] == cursor
            assert frames[-2].data["earliestAvailableId"] == cursor + 1
        assert ids == list(range(1, 23))


# Snapshot


async def test_snapshot_on_a_live_stream_comes_first(api: Api, session_id: str) -> None:
    """REST-086."""
    async with api.events(session_id, "?snapshot=1") as stream:
        first = await stream.next()
    assert first.type == "session_snapshot"
    assert first.id is None
    assert first.data == {
        "sessionId": session_id,
        "currentModelId": "small",
        "currentApprovalMode": "default",
        "recordingDegraded": False,
    }


async def test_snapshot_on_a_resumed_stream_follows_the_replay(api: Api, session_id: str) -> None:
    """REST-086, T07; once, however long the replay."""
    await api.run(session_id, "many 1200")
    async with api.events(session_id, "?snapshot=1", Last_Event_ID="1") as stream:
        frames = await stream.until("session_snapshot")
        assert [each.type for each in frames[-2:]] == ["replay_complete", "session_snapshot"]
        await api.submit(session_id, "fine")
        later = await stream.until("turn_complete")
    assert "session_snapshot" not in [each.type for each in later]


@pytest.mark.parametrize("query", ["", "?snapshot=0", "?snapshot=true"])
async def test_no_snapshot_unasked(api: Api, session_id: str, query: str) -> None:
    """REST-080."""
    async with api.events(session_id, query) as stream:
        await api.submit(session_id, "fine")
        assert (await stream.next()).type == "session_update"


# Slow readers


async def test_slow_reader_is_warned_then_evicted(api: Api, session_id: str, autojump_clock: MockClock) -> None:
    """ACP-018, ACP-019, REST-087: the reader gets what is queued, is told, and the stream ends."""
    session = api.session(session_id)
    async with api.events(session_id, "?maxQueued=16", window=1) as stream:
        await wait_all_tasks_blocked()
        for number in range(13):
            session.publish("x", {"n": number})
        # Fills the window: from here on nothing is taken.
        await wait_all_tasks_blocked()
        for number in range(30):
            session.publish("x", {"n": 13 + number})
        frames = await stream.rest()
    types = [each.type for each in frames]
    assert types[-1] == "client_evicted"
    evicted = frames[-1].data
    assert (evicted["reason"], evicted["maxQueued"]) == ("queue_overflow", 16)
    shown = [each.id for each in frames if each.id is not None]
    assert shown == list(range(1, evicted["droppedAfter"] + 1))
    assert session.ring.subscribers == 0
    assert (await api.replay(session_id, shown[-1]))[0].id == shown[-1] + 1


async def test_warning(api: Api, session_id: str) -> None:
    """ACP-018."""
    session = api.session(session_id)
    async with api.events(session_id, "?maxQueued=16") as stream:
        await wait_all_tasks_blocked()
        for number in range(13):
            session.publish("x", {"n": number})
        warning = await stream.next()
    assert warning.type == "slow_client_warning"
    assert set(warning.data) == {
        "queueSize",
        "maxQueued",
        "lastEventId",
        "queuedBytes",
        "maxQueuedBytes",
        "threshold",
    }


async def test_stalled_reader_delays_nobody(api: Api, session_id: str, autojump_clock: MockClock) -> None:
    """C-027."""
    async with api.events(session_id, window=1), api.events(session_id) as healthy:
        await api.submit(session_id, "tick 100")
        begun = trio.current_time()
        await healthy.until("turn_complete")
        assert trio.current_time() - begun == pytest.approx(10, abs=0.5)


async def test_writer_idle_timeout(start: StartApi, autojump_clock: MockClock) -> None:
    """REST-087: a chunk that was accepted too late."""
    async with start(writer_idle_timeout_ms=2000) as api:
        session_id = (await api.create())["sessionId"]
        session = api.session(session_id)
        async with api.driver.stream("GET", f"/session/{session_id}/events", window=0) as stream:
            await stream.head()
            await stream.read()
            await wait_all_tasks_blocked()
            session.publish("x", {})
            await trio.sleep(3)
            frames = [Frame(raw) for raw in (await stream.rest()).split(b"\n\n") if raw]
    assert [each.type for each in frames] == ["x", "client_evicted"]
    data = frames[1].data
    assert (data["reason"], data["errorKind"]) == ("writer_idle_timeout", "writer_idle_timeout")
    assert data["timeoutMs"] == 2000
    assert 2900 <= data["idleForMs"] <= 3100


# Ends


async def test_a_defect_ends_the_stream_with_a_word(api: Api, session_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """REST-087 ``stream_error``; other readers go on."""

    def broken(*args: Any) -> bytes:
        raise RuntimeError("a defect")

    async with api.events(session_id) as stream:
        monkeypatch.setattr(events_module, "chunk", broken)
        api.session(session_id).publish("x", {})
        frames = await stream.rest()
    assert [each.type for each in frames] == ["stream_error"]
    monkeypatch.undo()
    assert api.session(session_id).ring.subscribers == 0
    assert (await api.replay(session_id))[0].id == 1


async def test_session_end_ends_the_stream(api: Api, session_id: str) -> None:
    """REST-087: after ``session_died``."""
    async with api.events(session_id) as stream:
        await api.submit(session_id, "dying 0")
        frames = await stream.rest()
    assert frames[-1].type == "session_died"


async def test_drain_ends_streams_with_session_closed(api: Api, session_id: str) -> None:
    """C-063: sessions close over the open streams."""
    async with api.events(session_id) as stream:
        api.driver.ground.drain.begin()
        frames = await stream.rest()
    assert [each.type for each in frames] == ["session_closed"]
    assert frames[0].data["reason"] == "shutdown"


async def test_a_stream_that_is_cut_gets_a_last_frame(
    api: Api, session_id: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """Issue: streams get a last frame, with what was pending before it, also when their session does not close in time."""

    async def slow(grace: float) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(api.harbour, "drain", slow)
    async with api.events(session_id) as stream:
        api.session(session_id).publish("x", {})
        api.driver.ground.drain.cut()
        frames = await stream.rest()
        monkeypatch.undo()
    assert [each.type for each in frames] == ["x", "stream_error"]
    assert frames[-1].data["errorKind"] == "daemon_draining"


async def test_closing_a_stream_changes_nothing(api: Api, session_id: str) -> None:
    """REST-088."""
    prompt_id = await api.submit(session_id, "hold")
    async with api.events(session_id):
        await wait_all_tasks_blocked()
    await wait_all_tasks_blocked()
    assert (await api.get(f"/session/{session_id}/prompts/{prompt_id}")).json()["state"] == "running"
    assert api.session(session_id).ring.subscribers == 0
