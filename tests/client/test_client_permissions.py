"""Permission requests: CLI-028, CLI-035, CLI-037."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from client import DaemonSessionClient, Event, Vote
from client.permissions import PermissionDesk, Showing
from tests.support.fake_daemon import ALL_TRANSPORTS, FakeSession, client_of, eventually, fake_daemon

Clock = trio.testing.MockClock
SELECTED = {"outcome": "selected", "optionId": "yes"}
CANCELLED = {"outcome": "cancelled"}


def ask(session: FakeSession, request_id: str = "r1") -> None:
    options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
    data = {"requestId": request_id, "sessionId": session.id, "toolCall": {"toolCallId": "t"}, "options": options}
    session.publish("permission_request", data)


@pytest.mark.parametrize("transport", ALL_TRANSPORTS)
async def test_a_request_is_shown_and_answered(transport: str, autojump_clock: Clock) -> None:
    """CLI-037, CLI-039: the same event on every transport; on /acp the vote is the response to the outbound id."""
    async with fake_daemon() as daemon, client_of(daemon, transport) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        fake = daemon.sessions[session.session_id]
        async with session.events() as events:
            await trio.sleep(0.1)
            ask(fake)
            event = await anext(events)
            while event.type != "permission_request":
                event = await anext(events)
            assert event.request_id == "r1"
            assert event.data["options"][0]["optionId"] == "yes"
            assert await session.vote("r1", "yes")
            await eventually(lambda: bool(fake.votes))
        assert fake.votes == [("r1", SELECTED)]
        assert daemon.calls("rpc response") == (0 if transport == "rest" else 1)


@pytest.mark.parametrize("transport", ALL_TRANSPORTS)
async def test_only_the_request_id_is_known(transport: str, autojump_clock: Clock) -> None:
    """CLI-037: then /acp uses session/permission."""
    async with fake_daemon() as daemon, client_of(daemon, transport, default_vote=None) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        assert await client.vote(session.session_id, "r9", Vote("yes"))
        assert daemon.sessions[session.session_id].votes == [("r9", SELECTED)]
        assert daemon.calls("rpc session/permission") == (0 if transport == "rest" else 1)
        if transport == "rest":
            assert not await client.vote(session.session_id, "r9", Vote(None))


async def test_a_vote_that_came_too_late_on_acp(autojump_clock: Clock) -> None:
    """ACP-175: nothing pending is an answer, not an error."""
    async with fake_daemon() as daemon, client_of(daemon, "acp-http") as client:
        session = await DaemonSessionClient.create_or_attach(client)
        error = {"code": -32602, "message": "No pending permission request", "data": {"httpStatus": 404}}
        daemon.refusals["session/permission"] = [error]
        assert not await client.vote(session.session_id, "r9", Vote("yes"))


async def test_a_replayed_request_is_not_shown_again(autojump_clock: Clock) -> None:
    """CLI-028, client-sdk 7.7 test 10: after the vote the replay brings a new outbound id; it is answered, not shown."""
    async with fake_daemon() as daemon, client_of(daemon, "acp-http") as client:
        session = await DaemonSessionClient.create_or_attach(client)
        fake = daemon.sessions[session.session_id]
        ask(fake)
        async with session.events() as events:
            assert (await anext(events)).type == "permission_request"
            await session.vote("r1", "yes")
            await eventually(lambda: len(fake.votes) == 1)
        async with session.events(cursor=0) as events:
            kinds = [(await anext(events)).type]
            await eventually(lambda: len(fake.votes) == 2)
        assert kinds == ["replay_complete"]
        assert fake.votes == [("r1", SELECTED)] * 2


@pytest.mark.parametrize("transport", ["acp-http", "acp-ws"])
@pytest.mark.parametrize(("default", "expected"), [(Vote(), CANCELLED), (Vote("yes"), SELECTED), (None, None)])
async def test_without_a_consumer_the_default_answers(
    transport: str, default: Vote | None, expected: object, autojump_clock: Clock
) -> None:
    """CLI-035: the stream kept open without a consumer answers instead of ignoring (K4); None leaves it to others."""
    async with fake_daemon() as daemon, client_of(daemon, transport, default_vote=default) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        fake = daemon.sessions[session.session_id]
        await trio.sleep(0.1)
        ask(fake)
        await trio.sleep(1)
        assert fake.votes == ([] if expected is None else [("r1", expected)])


@pytest.mark.parametrize("transport", ["acp-http", "acp-ws"])
async def test_a_vote_lost_with_its_connection_is_repeated(transport: str, autojump_clock: Clock) -> None:
    """CLI-037, CLI-026: a response has no answer, so after a lost connection an unresolved vote is given again."""
    async with fake_daemon() as daemon:
        daemon.moorline = {"detach": True}
        async with client_of(daemon, transport) as client:
            session = await DaemonSessionClient.create_or_attach(client)
            fake = daemon.sessions[session.session_id]
            async with session.events() as events:
                ask(fake, "lost")
                ask(fake, "resolved")
                kinds = [(await anext(events)).type for _ in range(3)]
                assert kinds.count("permission_request") == 2
                await session.vote("lost", "yes")
                await session.vote("resolved", "yes")
                await eventually(lambda: len(fake.votes) == 2)
                fake.publish("permission_resolved", {"requestId": "resolved", "outcome": SELECTED})
                await anext(events)
                fake.votes.clear()
                for stream in list(daemon.network.open):
                    await trio.aclose_forcefully(stream)
                await eventually(lambda: bool(fake.votes))
            await trio.sleep(5)
            assert fake.votes == [("lost", SELECTED)]
            assert daemon.calls("rpc session/permission") == 1


async def test_where_the_server_decides_the_default_keeps_quiet(autojump_clock: Clock) -> None:
    """Issue 3: a stream that said it only routes replies is no consumer; another client may be about to vote."""
    async with fake_daemon() as daemon:
        daemon.moorline = {"sessionReplyMethods": []}
        async with client_of(daemon, "acp-http") as client:
            session = await DaemonSessionClient.create_or_attach(client)
            fake = daemon.sessions[session.session_id]
            await trio.sleep(0.1)
            ask(fake)
            await trio.sleep(1)
            assert fake.votes == []


async def test_a_prompt_alone_on_rest_answers_too(autojump_clock: Clock) -> None:
    """CLI-035: the temporary stream of a prompt makes the server wait for an answer, so it has to give one."""

    async with fake_daemon() as daemon, client_of(daemon) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        fake = daemon.sessions[session.session_id]

        async def asking(turn: object) -> str:
            ask(fake)
            await eventually(lambda: bool(fake.votes))
            return "end_turn"

        daemon.agent = asking
        await session.prompt("x")
        assert fake.votes == [("r1", CANCELLED)]


def request(request_id: str, outbound: str | None = None) -> Event:
    return Event("permission_request", {"requestId": request_id}, outbound_id=outbound)


def test_the_desk() -> None:
    """CLI-028: shown only once consumed, repeated only if answered and unresolved, forgotten in order of use."""
    desk = PermissionDesk()
    assert desk.arrive(request("a")) is Showing.SHOW
    assert desk.arrive(request("a")) is Showing.SHOW
    desk.show(request("a"))
    assert desk.arrive(request("a", "new")) is Showing.HIDE
    assert desk.record("a", Vote("x")) == "new"
    assert desk.arrive(request("a", "newer")) is Showing.REPEAT
    again = desk.answer_again(request("a"))
    assert again is not None
    assert (again.vote, again.outbound_id) == (Vote("x"), "newer")
    desk.learn(Event("permission_resolved", {"requestId": "a"}))
    assert desk.arrive(request("a", "newest")) is Showing.HIDE
    desk.learn(Event("permission_resolved", {"requestId": "b"}))
    assert desk.arrive(request("b")) is Showing.HIDE
    for number in range(1000):
        desk.arrive(request(f"{number}"))
    assert desk.statistics() == {"known": 256}
    assert desk.arrive(request("a")) is Showing.SHOW
