"""What a session stream says and in which order, pulled by hand on a virtual clock."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from server.routes.acp.deferred import Reply
from server.routes.acp.streams import DOUBT, Carrier
from server.routes.acp.translate import SSE
from sessions import Operation, TurnResult
from tests.server.acp.conftest import Core, acp_core, frames_of, nothing, prompt, publish, take
from tests.support.fake_runner import SCRIPTS, FakeRunner, FakeSession


def reply(number: int) -> Reply:
    return Reply(b'{"jsonrpc":"2.0","id":%d,"result":{}}' % number)


async def test_live_only_without_a_cursor(autojump_clock: MockClock) -> None:
    """ACP-113, ACP-012: no cursor, no replay, no replay_complete."""
    async with acp_core() as core:
        binding = await core.own(core.connect())
        publish(binding, 2)
        stream = binding.open_stream(core.carrier)
        assert await nothing(stream)
        publish(binding, 1)
        assert await take(stream) == ["3:agent_message_chunk"]


async def test_replay_then_live(autojump_clock: MockClock) -> None:
    """ACP-012, ACP-093, C-001."""
    async with acp_core() as core:
        binding = await core.own(core.connect())
        publish(binding, 4)
        stream = binding.open_stream(core.carrier, 2)
        assert await take(stream) == ["3:agent_message_chunk", "4:agent_message_chunk", "replay_complete"]
        publish(binding, 1)
        assert await take(stream) == ["5:agent_message_chunk"]


async def test_bytes_of_a_frame(autojump_clock: MockClock) -> None:
    """ACP-093, ACP-094, ACP-095, seed tests 1 and 2: id, data, blank line; a reply has no id."""
    async with acp_core() as core:
        binding = await core.own(core.connect())
        stream = binding.open_stream(core.carrier)
        publish(binding, 1)
        binding.reply(reply(7))
        event, answer = await stream.take() or []
        assert event.startswith(b'id: 1\ndata: {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":')
        assert event.endswith(b"}}\n\n")
        assert answer == b'data: {"jsonrpc":"2.0","id":7,"result":{}}\n\n'


async def test_buffered_replies_without_a_cursor_come_at_once(autojump_clock: MockClock) -> None:
    """ACP-130, ACP-132, ACP-135, ACP-147, T11: kept while nobody listens; a fresh attach flushes the whole buffer."""
    async with acp_core() as core:
        binding = await core.own(core.connect())
        publish(binding, 3)
        binding.reply(reply(1))
        binding.reply(reply(2))
        assert await take(binding.open_stream(core.carrier)) == ["reply:1", "reply:2"]


async def test_buffered_replies_with_a_cursor_come_after_the_replay(autojump_clock: MockClock) -> None:
    """ACP-133, ACP-134, C-002, T11 as required: events come from the ring alone: never before replay_complete."""
    async with acp_core() as core:
        binding = await core.own(core.connect())
        publish(binding, 3)
        binding.reply(reply(1))
        stream = binding.open_stream(core.carrier, 0)
        assert await take(stream) == [
            "1:agent_message_chunk",
            "2:agent_message_chunk",
            "3:agent_message_chunk",
            "replay_complete",
            "reply:1",
        ]


async def test_not_released_by_a_resync(autojump_clock: MockClock) -> None:
    """ACP-134, T14: state_resync_required precedes the replay, so nothing is released there."""
    async with acp_core(event_ring_size=2) as core:
        binding = await core.own(core.connect())
        publish(binding, 4)
        binding.reply(reply(1))
        assert await take(binding.open_stream(core.carrier, 1)) == [
            "state_resync_required",
            "3:agent_message_chunk",
            "4:agent_message_chunk",
            "replay_complete",
            "reply:1",
        ]


async def test_a_replay_cut_by_its_budget_still_releases(autojump_clock: MockClock) -> None:
    """ACP-136: ... or the replay was cut by a resync."""
    async with acp_core(replay_bytes=1) as core:
        binding = await core.own(core.connect())
        publish(binding, 3)
        binding.reply(reply(1))
        stream = binding.open_stream(core.carrier, 0)
        said = await take(stream)
        assert said == ["1:agent_message_chunk", "state_resync_required", "replay_complete", "reply:1"]


async def test_a_reply_made_during_a_long_replay_waits_for_its_live_tail(autojump_clock: MockClock) -> None:
    """ACP-136: it cannot overtake events published while the replay was under way."""
    async with acp_core(event_ring_size=5000, max_queued_events=5000) as core:
        binding = await core.own(core.connect())
        publish(binding, 1000)
        stream = binding.open_stream(core.carrier, 0)
        first = await take(stream)
        assert first is not None
        assert "replay_complete" not in first
        publish(binding, 2)
        binding.reply(reply(1))
        said = list(first)
        while "reply:1" not in said:
            said += await take(stream) or []
        assert said[1000:] == [
            "replay_complete",
            "1001:agent_message_chunk",
            "1002:agent_message_chunk",
            "reply:1",
        ]


async def test_the_reply_stands_between_the_content_and_turn_complete(autojump_clock: MockClock) -> None:
    """ACP-103, T03: also when all of it is sent in one write."""
    async with acp_core() as core:
        binding = await core.own(core.connect())
        stream = binding.open_stream(core.carrier)
        prompt(binding, "hello", "p1")
        await wait_all_tasks_blocked()
        assert await take(stream) == [
            "1:user_message_chunk",
            "2:agent_message_chunk",
            "reply:p1",
            "3:turn_complete",
        ]


async def test_everything_pending_is_one_write(autojump_clock: MockClock) -> None:
    """ACP-096, stack: a subscriber sends everything pending in one chunk."""
    async with acp_core() as core:
        binding = await core.own(core.connect())
        stream = binding.open_stream(core.carrier)
        publish(binding, 50)
        assert len(await take(stream) or []) == 50


async def test_superseded_stream_ends_and_its_unwritten_replies_move(autojump_clock: MockClock) -> None:
    """ACP-123, C-012: exactly one of two streams goes on, and the stuck socket is hurried."""
    async with acp_core() as core:
        binding = await core.own(core.connect())
        old = binding.open_stream(core.carrier)
        binding.reply(reply(1))
        assert await take(old) == ["reply:1"]
        binding.reply(reply(2))
        # The first is still being written when the next stream comes.
        new = binding.open_stream(core.carrier)
        assert core.hurried == [2.0]
        assert await old.take() is None
        assert await take(new) == ["reply:1", "reply:2"]
        old.close()
        assert binding.attached
        publish(binding, 1)
        assert await take(new) == ["1:agent_message_chunk"]


async def test_written_replies_are_not_sent_again(autojump_clock: MockClock) -> None:
    """ACP-137: asking for more says that the last frames are out."""
    async with acp_core() as core:
        binding = await core.own(core.connect())
        old = binding.open_stream(core.carrier)
        binding.reply(reply(1))
        await take(old)
        assert await nothing(old)
        old.close()
        assert await nothing(binding.open_stream(core.carrier, 0)) is False
        assert len(binding.replies) == 0


async def test_cancelling_take_loses_nothing(autojump_clock: MockClock) -> None:
    """The heartbeat cancels it every 15 s."""
    async with acp_core() as core:
        binding = await core.own(core.connect())
        stream = binding.open_stream(core.carrier)
        said: list[str] = []
        for number in range(20):
            with trio.move_on_after(0.001):
                said += await take(stream) or []
            publish(binding, 1)
            if number % 3 == 0:
                binding.reply(reply(number))
        while len(said) < 27:
            said += await take(stream) or []
        assert [word for word in said if word.startswith("reply")] == [f"reply:{n}" for n in range(0, 20, 3)]
        assert [word for word in said if ":" in word and not word.startswith("reply")] == [
            f"{n}:agent_message_chunk" for n in range(1, 21)
        ]


async def test_eviction_ends_the_stream_and_keeps_replies(autojump_clock: MockClock) -> None:
    """ACP-019, ACP-144: the slow reader is detached; nothing overtakes the content it has not got."""
    async with acp_core(max_queued_events=2) as core:
        binding = await core.own(core.connect())
        stream = binding.open_stream(core.carrier)
        publish(binding, 10)
        binding.reply(reply(1))
        said = await take(stream)
        assert said is not None
        assert said[-1] == "client_evicted"
        assert "reply:1" not in said
        assert await stream.take() is None
        stream.close()
        assert binding.in_grace
        again = binding.open_stream(core.carrier, 2)
        assert (await take(again) or [])[-2:] == ["replay_complete", "reply:1"]


async def test_the_history_of_a_session_that_was_closed_has_no_end(autojump_clock: MockClock) -> None:
    """ACP-193: what a client that loads it is shown goes on; a cursor still gets every event there is."""
    async with acp_core() as core:
        binding = await core.own(core.connect())
        session = binding.session
        publish(binding, 2)
        await session.close()
        opened = await core.harbour.restore(session.id, "load")
        again = core.connect().bind(opened.session, opened.client_id, history=True)
        publish(again, 1)
        first = again.open_stream(core.carrier)
        assert await take(first) == ["2:agent_message_chunk"]
        assert await take(first) == ["4:agent_message_chunk", "replay_complete"]
        assert await take(again.open_stream(core.carrier, 2)) == [
            "3:session_closed",
            "4:agent_message_chunk",
            "replay_complete",
        ]


async def test_session_closed_is_written_before_the_stream_ends(autojump_clock: MockClock) -> None:
    """ACP-096, section 13 decision: whole frames, then the end, then the binding is gone."""
    async with acp_core() as core:
        connection = core.connect()
        binding = await core.own(connection)
        stream = binding.open_stream(core.carrier)
        await binding.session.close()
        assert await take(stream) == ["1:session_closed"]
        assert await stream.take() is None
        stream.close()
        assert binding.over
        assert connection.bindings == {}


async def test_history_on_the_first_stream_after_a_load(autojump_clock: MockClock) -> None:
    """ACP-193, T05: finished turns merged, ids may skip, replayedCount counts ring events only; then never again."""

    async def chatter(session: FakeSession, operation: Operation) -> TurnResult | None:
        await trio.lowlevel.checkpoint()
        for word in ("a", "b", "c"):
            session.say(word)
        return None

    async with acp_core(FakeRunner(scripts={**SCRIPTS, "chatter": chatter})) as core:
        owner = await core.own(core.connect())
        prompt(owner, "chatter", 1)
        await wait_all_tasks_blocked()
        other = core.connect().bind(owner.session, None, history=True)
        publish(owner, 1)
        stream = other.open_stream(core.carrier)
        parts: list[bytes] = []
        while not any(b"replay_complete" in part for part in parts):
            parts += await stream.take() or []
        frames = frames_of(parts)
        assert [frame.id for frame in frames] == [1, 4, 5, 6, None]
        assert frames[1].message["params"]["update"]["content"]["text"] == "abc"
        assert frames[-1].message["params"]["data"]["replayedCount"] == 1
        stream.close()
        assert await nothing(other.open_stream(core.carrier))


async def test_history_with_a_cursor_is_the_ring(autojump_clock: MockClock) -> None:
    """ACP-193: with a cursor, only events with a larger id."""
    async with acp_core() as core:
        owner = await core.own(core.connect())
        publish(owner, 3)
        other = core.connect().bind(owner.session, None, history=True)
        assert await take(other.open_stream(core.carrier, 2)) == ["3:agent_message_chunk", "replay_complete"]


async def test_history_says_when_its_beginning_is_lost(autojump_clock: MockClock) -> None:
    """rest.md 6.1 history_truncated: never a silent gap."""
    async with acp_core(event_ring_size=3) as core:
        owner = await core.own(core.connect())
        publish(owner, 5)
        other = core.connect().bind(owner.session, None, history=True)
        stream = other.open_stream(core.carrier)
        parts = await stream.take() or []
        notice = frames_of(parts)[0].message["params"]
        assert notice["kind"] == "history_truncated"
        assert notice["data"]["truncatedEvents"] == 2


async def test_too_many_readers_is_said_and_the_binding_lives(autojump_clock: MockClock) -> None:
    """ACP-183, C-029: an error frame and the end, and the next attempt succeeds once there is room."""
    async with acp_core(max_subscribers=1) as core:
        binding = await core.own(core.connect())
        reader = binding.session.subscribe()
        stream = binding.open_stream(core.carrier, 0)
        parts = await stream.take() or []
        assert frames_of(parts)[0].message["params"]["kind"] == "stream_error"
        assert "data" not in frames_of(parts)[0].message["params"]
        assert await stream.take() is None
        stream.close()
        assert binding.in_grace
        reader.close()
        publish(binding, 1)
        assert (await take(binding.open_stream(core.carrier, 0)) or [])[-1] == "replay_complete"


async def test_events_of_other_wires_are_not_shown(autojump_clock: MockClock) -> None:
    """events.py: operation_state belongs to NNRP; it consumes an id here and nothing else."""
    async with acp_core() as core:
        binding = await core.own(core.connect())
        stream = binding.open_stream(core.carrier)
        binding.session.publish("operation_state", {"sessionId": "s", "operationId": 1, "state": "running"})
        publish(binding, 1)
        assert await take(stream) == ["2:agent_message_chunk"]


@pytest.mark.parametrize("text", ["x\r\nevent: hack\rid: 999\n\ndata: {}\n\n", "\u2028\u2029\u0085"])
async def test_agent_text_cannot_forge_frames(autojump_clock: MockClock, text: str) -> None:
    """C-044."""
    async with acp_core() as core:
        binding = await core.own(core.connect())
        stream = binding.open_stream(core.carrier)
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
        binding.session.update(update)
        (frame,) = frames_of(await stream.take())
        assert frame.id == 1
        assert frame.message["params"]["update"] == update


async def test_line_ends_between_an_agents_tokens(autojump_clock: MockClock) -> None:
    """C-044: raw data of an agent may hold a CR where JSON allows white space."""
    import msgspec

    async with acp_core() as core:
        binding = await core.own(core.connect())
        stream = binding.open_stream(core.carrier)
        binding.session.publish("session_update", msgspec.Raw(b'{"sessionId":"s",\r"update":{"sessionUpdate":"plan"}}'))
        (frame,) = frames_of(await stream.take())
        assert (frame.id, frame.kind) == (1, "plan")


# Replies that were on their way when the stream was cut


def cut(core: Core) -> Carrier:
    """A transport whose peer goes without a goodbye."""
    return Carrier(SSE, core.hurried.append, was_cut=lambda: True)


@pytest.mark.parametrize(("cursor", "again"), [(0, True), (1, True), (2, True), (3, False), (None, False)])
async def test_a_reply_a_cut_may_have_swallowed(autojump_clock: MockClock, cursor: int | None, again: bool) -> None:
    """Issue 3, replies survive: the cursor tells whether it was seen. Sent behind event 2, before event 3."""
    async with acp_core() as core:
        binding = await core.own(core.connect())
        stream = binding.open_stream(cut(core))
        publish(binding, 2)
        binding.reply(reply(1))
        publish(binding, 1)
        assert (await take(stream) or [])[2] == "reply:1"
        assert await nothing(stream)
        stream.close()
        new = binding.open_stream(core.carrier, cursor)
        said = [] if cursor is None and await nothing(new) else await take(new) or []
        assert ("reply:1" in said) is again
        if again:
            assert said[-2:] == ["replay_complete", "reply:1"]
            assert await nothing(new)
            new.close()
            last = binding.open_stream(core.carrier, 3)
            assert await take(last) == ["replay_complete"]
            assert await nothing(last)
        assert core.registry.statistics().waiting_frames == 0


async def test_a_goodbye_leaves_no_doubt(autojump_clock: MockClock) -> None:
    """T06: whoever closes in good order has read everything; an older cursor afterwards repeats events, not replies."""
    async with acp_core() as core:
        binding = await core.own(core.connect())
        stream = binding.open_stream(core.carrier)
        binding.reply(reply(1))
        publish(binding, 2)
        await take(stream)
        assert await nothing(stream)
        stream.close()
        assert "reply:1" not in (await take(binding.open_stream(core.carrier, 0)) or [])


async def test_nothing_is_given_to_a_transport_whose_peer_has_left(autojump_clock: MockClock) -> None:
    """ACP-123, issue 3: it takes frames for a moment more, and drops them."""
    left = False
    async with acp_core() as core:
        binding = await core.own(core.connect())
        stream = binding.open_stream(Carrier(SSE, core.hurried.append, is_over=lambda: left))
        left = True
        binding.reply(reply(1))
        assert await nothing(stream)
        stream.close()
        assert await take(binding.open_stream(core.carrier)) == ["reply:1"]


async def test_a_superseded_stream_leaves_doubt(autojump_clock: MockClock) -> None:
    """C-012: the old socket may be half dead, with the reply still in it."""
    async with acp_core() as core:
        binding = await core.own(core.connect())
        stream = binding.open_stream(core.carrier)
        publish(binding, 2)
        binding.reply(reply(1))
        await take(stream)
        assert await nothing(stream)
        assert "reply:1" in (await take(binding.open_stream(core.carrier, 1)) or [])
        assert await stream.take() is None


@pytest.mark.parametrize("how", ["cut", "superseded", "goodbye", "long ago"])
async def test_connection_replies_that_a_cut_may_have_swallowed(autojump_clock: MockClock, how: str) -> None:
    """Issue 3, replies survive: the connection stream has no cursor, so after a cut the latest are sent again."""
    async with acp_core() as core:
        connection = core.connect()
        stream = connection.open_stream(core.carrier if how in ("goodbye", "superseded") else cut(core))
        connection.send(reply(1))
        assert await take(stream) == ["reply:1"]
        assert await nothing(stream)
        if how == "long ago":
            await trio.sleep(DOUBT + 1)
        connection.send(reply(2))
        assert await take(stream) == ["reply:2"]
        if how != "superseded":
            assert await nothing(stream)
            stream.close()
        new = connection.open_stream(core.carrier)
        match how:
            case "goodbye":
                assert await nothing(new)
            case "long ago":
                assert await take(new) == ["reply:2"]
            case _:
                assert await take(new) == ["reply:1", "reply:2"]
        assert await nothing(new)
        assert core.registry.statistics().waiting_frames == 0


async def test_doubt_moves_with_adoption(autojump_clock: MockClock) -> None:
    """The connection is lost with the reply on its way; the next connection brings the cursor."""
    async with acp_core() as core:
        mine = await core.own(core.connect())
        stream = mine.open_stream(cut(core))
        prompt(mine, "hello", 3)
        await wait_all_tasks_blocked()
        assert "reply:3" in (await take(stream) or [])
        assert await nothing(stream)
        stream.close()
        theirs = core.share(core.connect(), mine)
        theirs.adopt(mine, 9)
        assert (await take(theirs.open_stream(core.carrier, 1)) or [])[-2:] == ["replay_complete", "reply:3"]
        assert await take(mine.open_stream(core.carrier, 3)) == ["replay_complete"]


@pytest.mark.parametrize(("answered_after", "ends_after"), [(0.3, 0.35), (None, 1.0)])
async def test_the_end_waits_for_the_reply_to_close(
    autojump_clock: MockClock, answered_after: float | None, ends_after: float
) -> None:
    """ACP-196, issue 3: until the reply is out and a moment has passed; a reply that cannot go out holds nothing up."""
    async with acp_core() as core:
        binding = await core.own(core.connect())
        stream = binding.open_stream(core.carrier)
        binding.revoke()
        await binding.session.close()
        assert await take(stream) == ["1:session_closed"]
        before = trio.current_time()

        async def answer() -> None:
            await trio.sleep(answered_after or 10)
            assert binding.close_answered is not None
            binding.close_answered.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            assert await stream.take() is None
            assert trio.current_time() - before == pytest.approx(ends_after)
            nursery.cancel_scope.cancel()


async def test_a_defect_ends_the_binding_and_loses_no_reply(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ACP-183: stream_error without id and the end; what waited behind the replay follows on the connection stream."""

    class Broken(type(SSE)):  # type: ignore[misc]  # the class of the one object
        def event(self, ring: object, event: object) -> bytes | None:
            raise ZeroDivisionError("a defect")

    async with acp_core() as core:
        connection = core.connect()
        replies = connection.open_stream(core.carrier)
        binding = await core.own(connection)
        publish(binding, 1)
        binding.reply(reply(1))
        stream = binding.open_stream(Carrier(Broken(), core.hurried.append), 0)
        (frame,) = frames_of(await stream.take())
        assert frame.message["params"] == {"error": "Internal error", "kind": "stream_error"}
        assert await stream.take() is None
        stream.close()
        assert connection.bindings == {}
        assert await take(replies) == ["reply:1"]
