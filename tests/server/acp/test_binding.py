"""Detach, grace, expiry, adoption, bounds: bindings and connections on a virtual clock."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from server.routes.acp.binding import Binding
from server.routes.acp.buffers import Bounds
from server.routes.acp.connection import ConnectionEnd
from server.routes.acp.deferred import Reply
from server.routes.acp.inflight import goes_on_counting
from server.routes.acp.registry import TooManyConnections
from sessions import EndReason, OperationState
from tests.server.acp.conftest import Core, acp_core, frames_of, prompt, publish, take
from tests.support.engine import terminals, text


def reply(number: int, size: int = 0) -> Reply:
    return Reply(b'{"jsonrpc":"2.0","id":%d,"result":"%s"}' % (number, b"x" * size))


def lose(binding: Binding, core: Core) -> None:
    binding.open_stream(core.carrier).close()


# Grace


async def test_detach_keeps_ownership_and_prompt(autojump_clock: MockClock) -> None:
    """ACP-140, ACP-141, ACP-142, ACP-160, C-014, seed test 7: within the grace nothing is lost."""
    async with acp_core() as core:
        connection = core.connect()
        binding = await core.own(connection)
        prompt(binding, "hold")
        lose(binding, core)
        await trio.sleep(9.9)
        assert connection.bindings[binding.session.id] is binding
        assert binding.session.prompts.count == 1
        binding.open_stream(core.carrier, 0)
        await trio.sleep(100)
        assert binding.session.prompts.count == 1
        assert not binding.over


async def test_a_binding_keeps_its_client_id(autojump_clock: MockClock) -> None:
    """REST-004, ACP-121: however many come and go on REST, an owner goes on; when it leaves, its id goes with it."""
    async with acp_core(max_clients=4) as core:
        connection = core.connect()
        binding = await core.own(connection)
        for _ in range(100):
            binding.session.register_client()
        prompt(binding, "say x")
        await wait_all_tasks_blocked()
        assert list(terminals(binding.session).values()) == [["end_turn"]]
        assert len(binding.session.clients) == 4
        binding.end()
        for _ in range(4):
            binding.session.register_client()
        assert binding.client_id not in binding.session.clients


async def test_expiry_tears_down(autojump_clock: MockClock) -> None:
    """ACP-140, ACP-143, ACP-161, C-015, T10: after 10 s ownership is gone and the prompt aborted; its reply goes to the connection stream (ACP-102)."""
    async with acp_core() as core:
        connection = core.connect()
        stream = connection.open_stream(core.carrier)
        binding = await core.own(connection)
        client_id = binding.client_id
        prompt(binding, "hold", 3)
        await wait_all_tasks_blocked()
        lose(binding, core)
        before = trio.current_time()
        frames = frames_of(await stream.take())
        assert trio.current_time() - before == pytest.approx(10.0)
        assert frames[0].message["result"]["stopReason"] == "cancelled"
        assert connection.bindings == {}
        assert client_id not in binding.session.clients
        assert list(terminals(binding.session).values()) == [["cancelled"]]


async def test_reattach_and_detach_again_restarts_the_grace(autojump_clock: MockClock) -> None:
    """ACP-142: the deadline moves."""
    async with acp_core() as core:
        binding = await core.own(core.connect())
        for _ in range(5):
            lose(binding, core)
            await trio.sleep(9)
        assert not binding.over
        await trio.sleep(1.1)
        assert binding.over


async def test_a_stale_close_detaches_nothing(autojump_clock: MockClock) -> None:
    """ACP-125, C-016."""
    async with acp_core() as core:
        binding = await core.own(core.connect())
        first = binding.open_stream(core.carrier)
        second = binding.open_stream(core.carrier)
        await trio.sleep(0.5)
        first.close()
        await trio.sleep(30)
        assert binding.attached
        assert binding.stream is second


async def test_owned_and_never_attached_has_no_grace(autojump_clock: MockClock) -> None:
    """ACP-152: only the idle sweep ends it."""
    async with acp_core() as core:
        binding = await core.own(core.connect())
        await trio.sleep(60)
        assert not binding.over


async def test_a_hundred_reconnects(autojump_clock: MockClock) -> None:
    """C-013: every event once, and no reader is left over."""
    async with acp_core() as core:
        binding = await core.own(core.connect())
        publish(binding, 100)
        seen: list[str] = []
        for cursor in range(100):
            stream = binding.open_stream(core.carrier, cursor)
            seen.append((await take(stream) or [])[0])
            stream.close()
        assert seen == [f"{n}:agent_message_chunk" for n in range(1, 101)]
        assert binding.session.ring.subscribers == 0


# Questions while away


async def test_a_question_while_away_stays_open(autojump_clock: MockClock) -> None:
    """ACP-148: a binding in grace is somebody who may come back."""
    async with acp_core() as core:
        binding = await core.own(core.connect())
        lose(binding, core)
        prompt(binding, "ask")
        await wait_all_tasks_blocked()
        assert len(binding.session.permissions.pending) == 1
        assert "session/request_permission" in str(await take(binding.open_stream(core.carrier, 0)))


async def test_a_question_nobody_can_see_is_cancelled(autojump_clock: MockClock) -> None:
    """ACP-178: owned, never attached, no REST reader: the agent goes on."""
    async with acp_core() as core:
        binding = await core.own(core.connect())
        prompt(binding, "ask")
        await wait_all_tasks_blocked()
        assert terminals(binding.session)
        assert binding.session.permissions.pending == []


async def test_a_stream_for_replies_is_nobody(autojump_clock: MockClock) -> None:
    """ACP-178 with X-Moorline-Stream-Role: replies; the prompt ends and its reply arrives there."""
    async with acp_core() as core:
        binding = await core.own(core.connect())
        stream = binding.open_stream(core.carrier, consumer=False)
        prompt(binding, "ask", 5)
        await wait_all_tasks_blocked()
        assert "reply:5" in (await take(stream) or [])


async def test_expiry_withdraws_what_nobody_else_can_see(autojump_clock: MockClock) -> None:
    """ACP-143: a question of a REST prompt, shown only here, is answered cancelled when this client is gone."""
    async with acp_core() as core:
        binding = await core.own(core.connect())
        stream = binding.open_stream(core.carrier)
        operation, _ = binding.session.submit_prompt(text("ask"))
        await wait_all_tasks_blocked()
        await take(stream)
        stream.close()
        with trio.fail_after(11):
            outcome = await operation.wait_settled()
        assert outcome.state is OperationState.COMPLETED
        assert terminals(binding.session) == {operation.id: ["end_turn"]}


async def test_a_question_others_can_see_survives(autojump_clock: MockClock) -> None:
    """ACP-122: the end of one owner takes nothing from another."""
    async with acp_core() as core:
        mine = await core.own(core.connect())
        theirs = core.share(core.connect(), mine)
        their_stream, my_stream = theirs.open_stream(core.carrier), mine.open_stream(core.carrier)
        prompt(theirs, "ask", 2)
        await wait_all_tasks_blocked()
        assert "session/request_permission" in str(await take(my_stream))
        mine.connection.destroy(ConnectionEnd.DELETED)
        assert len(theirs.session.permissions.pending) == 1
        assert "session/request_permission" in str(await take(their_stream))


# Immediate ends


async def test_destroying_a_connection_ends_everything_at_once(autojump_clock: MockClock) -> None:
    """ACP-081, ACP-145: no grace."""
    async with acp_core() as core:
        connection = core.connect()
        connection_stream = connection.open_stream(core.carrier)
        binding = await core.own(connection)
        stream = binding.open_stream(core.carrier)
        prompt(binding, "hold")
        prompt(binding, "later", 2)
        await wait_all_tasks_blocked()
        before = trio.current_time()
        connection.destroy(ConnectionEnd.DELETED)
        await wait_all_tasks_blocked()
        assert trio.current_time() == before
        assert binding.session.prompts.count == 0
        assert list(terminals(binding.session).values()) == [["cancelled"], ["cancelled"]]
        assert await stream.take() is None
        assert await connection_stream.take() is None
        assert binding.session.ring.subscribers == 0
        assert len(core.registry) == 0
        assert core.registry.statistics().waiting_frames == 0
        assert binding.session.clients == {}


async def test_a_session_nobody_was_told_of_is_removed(autojump_clock: MockClock) -> None:
    """ACP-120: the connection died before the reply to session/new was delivered."""
    async with acp_core() as core:
        connection = core.connect()
        binding = await core.own(connection, fresh=True)
        binding.announced = False
        connection.destroy(ConnectionEnd.DELETED)
        await wait_all_tasks_blocked()
        assert core.harbour.sessions == []
        assert core.harbour.archived == []


@pytest.mark.parametrize("end", [ConnectionEnd.DELETED, ConnectionEnd.IDLE, ConnectionEnd.GRACE_OVER, None])
async def test_a_session_left_for_good_is_closed(end: ConnectionEnd | None, autojump_clock: MockClock) -> None:
    """ACP-153, C-017, C-066: a goodbye, or a grace that ran out (None), by the last owner ends the session and its prompt,
    and what the agent keeps for it; it can be loaded again."""
    async with acp_core() as core:
        binding = await core.own(core.connect(), fresh=True)
        session = binding.session
        prompt(binding, "hold")
        await wait_all_tasks_blocked()
        if end is None:
            lose(binding, core)
            await trio.sleep(10.1)
        else:
            binding.connection.destroy(end)
        await wait_all_tasks_blocked()
        assert core.harbour.sessions == []
        assert session.end_reason is EndReason.ABANDONED
        assert list(terminals(session).values()) == [["cancelled"]]
        assert (await core.harbour.restore(session.id, "load")).session is session


@pytest.mark.parametrize("end", [ConnectionEnd.SOCKET_CLOSED, ConnectionEnd.RESOURCE_LIMIT])
async def test_a_session_whose_client_may_not_know_stays(end: ConnectionEnd, autojump_clock: MockClock) -> None:
    """ACP-120, ACP-239: only its client is dropped, and its prompt; a new connection goes on with the same agent."""
    async with acp_core() as core:
        binding = await core.own(core.connect(), fresh=True)
        binding.connection.destroy(end)
        await wait_all_tasks_blocked()
        assert core.harbour.sessions == [binding.session]
        assert binding.session.clients == {}


async def test_a_session_closed_elsewhere_ends_bindings_without_a_stream(autojump_clock: MockClock) -> None:
    """C-017: explicit close is immediate, even during the grace."""
    async with acp_core() as core:
        connection = core.connect()
        binding = await core.own(connection)
        lose(binding, core)
        await binding.session.close()
        assert connection.bindings == {}


async def test_an_agent_that_died_is_told_to_a_client_that_comes_back(autojump_clock: MockClock) -> None:
    """ACP-144: the stream of the returning client ends with the news; only then is the binding gone."""
    async with acp_core() as core:
        connection = core.connect()
        binding = await core.own(connection)
        prompt(binding, "hold", 4)
        await wait_all_tasks_blocked()
        lose(binding, core)
        binding.session.died("gone")
        stream = binding.open_stream(core.carrier, 0)
        said = await take(stream) or []
        assert said[-1] == "reply:4" or "reply:4" in said
        assert "session_died" in str(said)
        assert await stream.take() is None
        stream.close()
        assert connection.bindings == {}


# Connection lifetime


async def test_connection_grace(autojump_clock: MockClock) -> None:
    """ACP-150, T10: without its stream, and without sessions, a connection lives 10 s."""
    async with acp_core() as core:
        connection = core.connect()
        connection.open_stream(core.carrier).close()
        await trio.sleep(9.9)
        assert connection.dead is None
        await trio.sleep(0.2)
        assert connection.dead is ConnectionEnd.GRACE_OVER


async def test_connection_stream_reattached(autojump_clock: MockClock) -> None:
    """ACP-150: re-attaching cancels the timer."""
    async with acp_core() as core:
        connection = core.connect()
        connection.open_stream(core.carrier).close()
        await trio.sleep(5)
        connection.open_stream(core.carrier)
        await trio.sleep(60)
        assert connection.dead is None


async def test_a_live_session_stream_keeps_the_connection(autojump_clock: MockClock) -> None:
    """ACP-150: the decision is taken again when a session's grace expires; a new connection stream saves it."""
    async with acp_core() as core:
        connection = core.connect()
        binding = await core.own(connection)
        stream = binding.open_stream(core.carrier)
        connection.open_stream(core.carrier).close()
        await trio.sleep(60)
        assert connection.dead is None
        stream.close()
        await trio.sleep(9)
        assert connection.dead is None
        await trio.sleep(1.1)
        assert connection.dead is ConnectionEnd.GRACE_OVER


async def test_a_session_in_its_grace_keeps_the_connection(autojump_clock: MockClock) -> None:
    """ACP-150: the connection's timer fires while a session's own still runs."""
    async with acp_core() as core:
        connection = core.connect()
        binding = await core.own(connection)
        stream = binding.open_stream(core.carrier)
        connection.open_stream(core.carrier).close()
        await trio.sleep(5)
        stream.close()
        await trio.sleep(9)
        assert connection.dead is None
        await trio.sleep(1.1)
        assert connection.dead is ConnectionEnd.GRACE_OVER


async def test_an_overdue_connection_can_still_come_back(autojump_clock: MockClock) -> None:
    """ACP-150: past its grace, kept by a session stream, then attached again."""
    async with acp_core() as core:
        connection = core.connect()
        binding = await core.own(connection)
        stream = binding.open_stream(core.carrier)
        connection.open_stream(core.carrier).close()
        await trio.sleep(20)
        again = connection.open_stream(core.carrier)
        stream.close()
        await trio.sleep(20)
        assert binding.over
        assert connection.dead is None
        again.close()
        await trio.sleep(10.1)
        assert connection.dead is ConnectionEnd.GRACE_OVER


async def test_idle_sweep(autojump_clock: MockClock) -> None:
    """ACP-151, ACP-152: half an hour without any sign."""
    async with acp_core() as core:
        idle, active = core.connect(), core.connect()
        for _ in range(30):
            await trio.sleep(60)
            active.touch()
        assert idle.dead is None
        await trio.sleep(61)
        active.touch()
        assert idle.dead is ConnectionEnd.IDLE
        assert active.dead is None


async def test_connection_cap(autojump_clock: MockClock) -> None:
    """ACP-063: 64, then none; a place is free again when one ends."""
    async with acp_core() as core:
        connections = [core.connect() for _ in range(64)]
        with pytest.raises(TooManyConnections):
            core.connect()
        connections[0].destroy(ConnectionEnd.DELETED)
        core.connect()
        assert len({each.id for each in connections}) == 64


# Bounds


async def test_a_stream_that_is_never_opened_costs_its_binding(autojump_clock: MockClock) -> None:
    """ACP-131: 256 frames wait, the 257th tears the binding down; nothing is dropped silently."""
    async with acp_core() as core:
        connection = core.connect()
        stream = connection.open_stream(core.carrier)
        binding = await core.own(connection)
        for number in range(256):
            binding.reply(reply(number))
        assert not binding.over
        binding.reply(reply(256))
        assert binding.over
        assert connection.dead is None
        assert await take(stream) == [f"reply:{number}" for number in range(257)]


async def test_a_connection_that_waits_too_much_is_destroyed(autojump_clock: MockClock) -> None:
    """ACP-131: 1024 frames of one connection."""
    async with acp_core() as core:
        connection = core.connect()
        for number in range(1024):
            connection.send(reply(number))
        assert connection.dead is None
        connection.send(reply(1024))
        assert connection.dead is ConnectionEnd.RESOURCE_LIMIT
        assert core.registry.statistics().waiting_frames == 0


def test_the_bounds_themselves() -> None:
    """ACP-131, acp-http 12."""
    bounds = Bounds()
    assert (bounds.stream_frames, bounds.connection_frames, bounds.process_frames) == (256, 1024, 4096)
    assert (bounds.connection_bytes, bounds.process_bytes) == (64 * 2**20, 256 * 2**20)


async def test_bytes_count_too(autojump_clock: MockClock) -> None:
    """ACP-131: 64 MiB of one connection."""
    async with acp_core(bounds=Bounds(connection_bytes=1000)) as core:
        connection = core.connect()
        connection.send(reply(1, 900))
        assert connection.dead is None
        connection.send(reply(2, 100))
        assert connection.dead is ConnectionEnd.RESOURCE_LIMIT


async def test_the_process_has_a_bound_of_its_own(autojump_clock: MockClock) -> None:
    """ACP-131: 4096 frames of all connections: whoever comes too many goes."""
    async with acp_core(bounds=Bounds(process_frames=10)) as core:
        one, other = core.connect(), core.connect()
        for number in range(8):
            one.send(reply(number))
        for number in range(3):
            other.send(reply(number))
        assert one.dead is None
        assert other.dead is ConnectionEnd.RESOURCE_LIMIT


# Adoption


async def test_prompts_are_adopted_and_answered_once(autojump_clock: MockClock) -> None:
    """Issue 3: resume from another connection within the grace; the old expiry aborts nothing, the outcome comes there."""
    async with acp_core() as core:
        old, new = core.connect(), core.connect()
        mine = await core.own(old)
        prompt(mine, "hold", 3)
        prompt(mine, "second", 4)
        await wait_all_tasks_blocked()
        lose(mine, core)
        theirs = core.share(new, mine)
        assert core.registry.unattended(mine.session.id, new) == [mine]
        adopted = theirs.adopt(mine, 9)
        assert [each.request_id for each in adopted] == [3, 4]
        await trio.sleep(30)
        assert mine.over
        assert theirs.session.prompts.count == 2
        stream = theirs.open_stream(core.carrier, 0)
        theirs.session.cancel_prompt()
        await wait_all_tasks_blocked()
        said = await take(stream) or []
        assert [word for word in said if word.startswith("reply")] == ["reply:3", "reply:4"]
        assert len(old.replies) == 0
        assert list(terminals(theirs.session).values()) == [["cancelled"], ["end_turn"]]
        # Pollable: REST finds them by id.
        for prompt_id in terminals(theirs.session):
            assert theirs.session.prompt(prompt_id).settled


async def test_answers_that_waited_are_adopted_too(autojump_clock: MockClock) -> None:
    """The turn ended while nobody listened: its reply moves, other replies stay."""
    async with acp_core() as core:
        mine = await core.own(core.connect())
        lose(mine, core)
        prompt(mine, "hello", 3)
        await wait_all_tasks_blocked()
        mine.reply(reply(77))
        theirs = core.share(core.connect(), mine)
        theirs.adopt(mine, 9)
        assert await take(theirs.open_stream(core.carrier, 3)) == ["replay_complete", "reply:3"]
        assert (await take(mine.open_stream(core.carrier, 3))) == ["replay_complete", "reply:77"]


async def test_an_id_the_client_counts_again_is_not_used(autojump_clock: MockClock) -> None:
    """A client whose ids start over would take the response for that of another request: it gets a notification."""
    async with acp_core() as core:
        mine = await core.own(core.connect())
        prompt(mine, "hello", 3)
        lose(mine, core)
        theirs = core.share(core.connect(), mine)
        theirs.adopt(mine, 2)
        stream = theirs.open_stream(core.carrier)
        await wait_all_tasks_blocked()
        frames = frames_of(await stream.take())
        told = [frame.message for frame in frames if frame.method == "_moorline/session/prompt_outcome"]
        (prompt_id,) = terminals(theirs.session)
        assert told == [
            {
                "jsonrpc": "2.0",
                "method": "_moorline/session/prompt_outcome",
                "params": {
                    "sessionId": theirs.session.id,
                    "promptId": prompt_id,
                    "requestId": 3,
                    "result": {"stopReason": "end_turn"},
                },
            }
        ]
        assert not any("method" not in frame.message for frame in frames)


@pytest.mark.parametrize(
    ("adopting", "adopted", "goes_on"),
    [
        (5, 3, True),
        (3, 3, False),
        (2, 3, False),
        (5.5, 3, True),
        ("b", "a", True),
        ("a", "a", False),
        (5, "a", False),
        ("a", 3, False),
        (None, 3, False),
    ],
)
def test_whose_ids_go_on(adopting: object, adopted: object, goes_on: bool) -> None:
    assert goes_on_counting(adopting, adopted) is goes_on  # type: ignore[arg-type]  # parametrized


async def test_what_somebody_listens_to_is_not_adopted(autojump_clock: MockClock) -> None:
    """ACP-122: co-ownership of an attached session takes nothing over."""
    async with acp_core() as core:
        mine = await core.own(core.connect())
        mine.open_stream(core.carrier)
        assert core.registry.unattended(mine.session.id, core.connect()) == []


async def test_a_connection_in_grace_gives_up_sessions_it_never_attached(autojump_clock: MockClock) -> None:
    """The client of the old connection opened no session stream before it was lost."""
    async with acp_core() as core:
        old = core.connect()
        mine = await core.own(old)
        old.open_stream(core.carrier).close()
        assert core.registry.unattended(mine.session.id, core.connect()) == [mine]


# Handing over (WebSocket resume)


async def test_handing_over_moves_everything(autojump_clock: MockClock) -> None:
    """Issue 3: replies, prompts, questions and client id go to the new socket, with the ids the client knows."""
    async with acp_core() as core:
        old = core.registry.open(local=True, resumable=True)
        mine = await core.own(old)
        stream = mine.open_stream(core.carrier)
        prompt(mine, "ask", 1)
        await wait_all_tasks_blocked()
        first = frames_of(await stream.take())
        asked = [frame.message["id"] for frame in first if frame.method == "session/request_permission"]
        mine.reply(reply(5))
        client_id = mine.client_id
        stream.close()
        old.lose_socket()
        new = core.registry.open(local=True, resumable=True)
        theirs = new.bind(mine.session, None)
        mine.hand_over(theirs)
        assert mine.over
        assert theirs.client_id == client_id
        assert client_id in theirs.session.clients
        again = frames_of(await theirs.open_stream(core.carrier, 0).take())
        assert [frame.message["id"] for frame in again if frame.method == "session/request_permission"] == asked
        assert again[-1].kind == "reply:5"
        assert theirs.session.prompts.count == 1
        await trio.sleep(30)
        assert theirs.session.prompts.count == 1


async def test_a_lost_socket_waits_with_its_sessions(autojump_clock: MockClock) -> None:
    """--ws-grace-ms: connection and sessions together, then gone."""
    async with acp_core() as core:
        connection = core.registry.open(local=True, resumable=True)
        connection.open_stream(core.carrier)
        binding = await core.own(connection)
        prompt(binding, "hold")
        connection.lose_socket()
        await trio.sleep(9)
        assert (connection.dead, binding.session.prompts.count) == (None, 1)
        await trio.sleep(1.1)
        assert connection.dead is ConnectionEnd.GRACE_OVER
        await wait_all_tasks_blocked()
        assert binding.session.prompts.count == 0
