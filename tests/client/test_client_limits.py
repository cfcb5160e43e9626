"""The local prompt limit: CLI-010 to CLI-017, client-sdk 7.7 tests 1 to 5."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import trio
import trio.testing

from client import (
    OMITTED,
    Capabilities,
    DaemonClient,
    DaemonConnectionError,
    DaemonError,
    DaemonHttpError,
    DaemonPendingPromptLimitError,
    DaemonPromptQueueFullError,
    DaemonProtocolError,
    DaemonSessionClient,
    DaemonStreamEndedError,
    DaemonTurnError,
    JsonRpcError,
    PromptMayBeAcceptedError,
    PromptRequest,
)
from client.limits import PromptCounters, effective_limit
from tests.support.fake_daemon import (
    ALL_TRANSPORTS,
    FakeDaemon,
    Turn,
    client_of,
    eventually,
    fake_daemon,
    wait_for_cancel,
)
from tests.support.scripted_server import Cut, Exchange

Clock = trio.testing.MockClock


@pytest.mark.parametrize(
    ("given", "effective"),
    [(OMITTED, 5), (None, None), (0, None), (math.inf, None), (0.0, None), (1, 1), (7, 7), (3.0, 3)],
)
def test_limit_table(given: Any, effective: int | None) -> None:
    """CLI-010."""
    assert effective_limit(given) == effective


@pytest.mark.parametrize("wrong", [-1, 1.5, math.nan, -math.inf, True, False, "5", [5]])
async def test_wrong_limits_are_refused_at_construction(wrong: Any, autojump_clock: Clock) -> None:
    """CLI-010."""
    async with trio.open_nursery() as nursery:
        with pytest.raises((TypeError, ValueError)):
            DaemonClient("http://daemon", nursery=nursery, max_pending_prompts_per_session=wrong)


def test_counters_are_per_session_and_release_once() -> None:
    """CLI-012, CLI-013: a double release gives one place back, and an empty counter is gone."""
    counters = PromptCounters()
    first = counters.reserve("a", 2)
    counters.reserve("a", 2)
    counters.reserve("b", 2)
    with pytest.raises(DaemonPendingPromptLimitError) as caught:
        counters.reserve("a", 2)
    assert (caught.value.session_id, caught.value.limit, caught.value.pending_count) == ("a", 2, 2)
    first()
    first()
    assert (counters.count("a"), counters.count("b"), counters.count("c")) == (1, 1, 0)


def prompts_seen(daemon: FakeDaemon, session: DaemonSessionClient) -> int:
    return daemon.calls(f"POST /session/{session.session_id}/prompt") + daemon.calls("rpc session/prompt")


async def hold(daemon: FakeDaemon, session: DaemonSessionClient, nursery: trio.Nursery, count: int) -> None:
    """Have ``count`` prompts of the session waiting."""
    before = prompts_seen(daemon, session)

    async def ignore_the_end() -> None:
        try:
            await session.prompt("hold")
        except DaemonError:
            return

    for _ in range(count):
        nursery.start_soon(ignore_the_end)
    await eventually(lambda: prompts_seen(daemon, session) == before + count)


@pytest.mark.parametrize("transport", ALL_TRANSPORTS)
async def test_at_the_limit_nothing_is_sent(transport: str, autojump_clock: Clock) -> None:
    """CLI-011, CLI-012: refused before the request; the counter is shared by all session objects of one client."""
    async with (
        fake_daemon(wait_for_cancel) as daemon,
        client_of(daemon, transport, max_pending_prompts_per_session=2) as client,
        trio.open_nursery() as nursery,
    ):
        session = await DaemonSessionClient.create_or_attach(client)
        same = DaemonSessionClient(client, session.session_id)
        await hold(daemon, session, nursery, 2)
        log = list(daemon.log)
        with pytest.raises(DaemonPendingPromptLimitError):
            await same.prompt("one too many")
        assert daemon.log == log
        # Another session, and another client, have places of their own.
        other = await DaemonSessionClient.create_or_attach(client)
        await hold(daemon, other, nursery, 1)
        async with client_of(daemon, transport, max_pending_prompts_per_session=2) as elsewhere:
            resumed = await DaemonSessionClient.resume(elsewhere, session.session_id)
            await hold(daemon, resumed, nursery, 1)
            assert client.counters.count(session.session_id) == 2
            assert elsewhere.counters.count(session.session_id) == 1
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("limit", [None, 0, math.inf])
async def test_no_limit(limit: float | None, autojump_clock: Clock) -> None:
    """CLI-010: ten prompts go out, nothing is counted."""
    async with (
        fake_daemon(wait_for_cancel) as daemon,
        client_of(daemon, max_pending_prompts_per_session=limit) as client,
        trio.open_nursery() as nursery,
    ):
        session = await DaemonSessionClient.create_or_attach(client)
        await hold(daemon, session, nursery, 10)
        assert client.counters.count(session.session_id) == 0
        nursery.cancel_scope.cancel()


async def test_a_session_may_have_its_own_limit(autojump_clock: Clock) -> None:
    """CLI-015: the constructor takes one; omitted is the client's."""
    async with (
        fake_daemon(wait_for_cancel) as daemon,
        client_of(daemon, max_pending_prompts_per_session=3) as client,
        trio.open_nursery() as nursery,
    ):
        created = await DaemonSessionClient.create_or_attach(client)
        narrow = DaemonSessionClient(client, created.info, max_pending_prompts_per_session=1)
        await hold(daemon, narrow, nursery, 1)
        with pytest.raises(DaemonPendingPromptLimitError):
            await narrow.prompt("x")
        await hold(daemon, created, nursery, 2)
        with pytest.raises(DaemonPendingPromptLimitError):
            await created.prompt("x")
        nursery.cancel_scope.cancel()


async def test_positions_of_the_factories(autojump_clock: Clock) -> None:
    """CLI-015: client, then session id, then request, then client id; no limit among them."""
    async with fake_daemon() as daemon, client_of(daemon) as client:
        daemon.new_session("s")
        for factory in (DaemonSessionClient.load, DaemonSessionClient.resume):
            session = await factory(client, "s", None, None)
            assert session.session_id == "s"
            with pytest.raises(TypeError):
                await factory(client, "s", None, None, 5)  # type: ignore[call-arg]  # that is the point
        with pytest.raises(TypeError):
            await DaemonSessionClient.create_or_attach(client, None, None, 5)  # type: ignore[call-arg]  # likewise


async def test_capability_limit_passes_unchanged(autojump_clock: Clock) -> None:
    """CLI-004, CLI-042: null in the capabilities is None here, hence unlimited; a missing value is the default."""
    for limits, effective in (
        ({"maxPendingPromptsPerSession": None}, None),
        ({"maxPendingPromptsPerSession": 9}, 9),
        ({}, 5),
    ):
        given = Capabilities({"limits": limits}).max_pending_prompts_per_session
        async with trio.open_nursery() as nursery:
            async with DaemonClient("http://d", nursery=nursery, max_pending_prompts_per_session=given) as client:
                assert client.prompt_limit == effective


def test_option_names_are_snake_case() -> None:
    """CLI-004."""
    for function in (
        DaemonClient.__init__,
        DaemonSessionClient.__init__,
        DaemonSessionClient.events,
        PromptRequest.build,
    ):
        for name in inspect.signature(function).parameters:
            assert name == name.lower(), f"{function.__qualname__}: {name}"


async def answer_200(exchange: Exchange) -> None:
    await exchange.answer(200, {"stopReason": "max_tokens"})


async def answer_garbage(exchange: Exchange) -> None:
    await exchange.answer(200, "<html>")


async def answer_202_garbage(exchange: Exchange) -> None:
    await exchange.answer(202, {"nothing": 1})


async def answer_500(exchange: Exchange) -> None:
    await exchange.answer(500, {"error": "broken"})


async def answer_queue_full(exchange: Exchange) -> None:
    body = {"error": "full", "code": "prompt_queue_full", "sessionId": "s", "limit": 5, "pendingCount": 5}
    await exchange.answer(503, body, {"Retry-After": "5"})


async def hang_up(exchange: Exchange) -> None:
    raise Cut


async def fail_turn(turn: Turn) -> str:
    raise RuntimeError("boom")


POINTS: list[tuple[Any, Any, Any]] = [
    # agent, override of the prompt route, expected error
    (None, answer_200, None),
    (None, None, None),
    (fail_turn, None, DaemonTurnError),
    (None, answer_garbage, DaemonProtocolError),
    (None, answer_202_garbage, DaemonProtocolError),
    (None, answer_500, DaemonHttpError),
    (None, answer_queue_full, DaemonPromptQueueFullError),
    (None, hang_up, PromptMayBeAcceptedError),
]


@pytest.mark.parametrize("subscribed", [False, True])
@pytest.mark.parametrize(("agent", "override", "error"), POINTS)
async def test_release_points(
    agent: Any, override: Any, error: type[Exception] | None, subscribed: bool, autojump_clock: Clock
) -> None:
    """CLI-013, points 1, 2, 3 and 6, without and with a subscription (CLI-016): the place comes back, once."""
    async with (
        fake_daemon(*([agent] if agent else [])) as daemon,
        client_of(daemon, max_pending_prompts_per_session=1) as client,
        trio.open_nursery() as nursery,
    ):
        session = await DaemonSessionClient.create_or_attach(client)
        if subscribed:
            nursery.start_soon(consume, session)
            await trio.testing.wait_all_tasks_blocked()
        if override is not None:
            daemon.overrides[f"POST /session/{session.session_id}/prompt"] = override
        for _ in range(3):
            if error is None:
                await session.prompt("x")
            else:
                with pytest.raises(error):
                    await session.prompt("x")
            assert client.counters.count(session.session_id) == 0
        nursery.cancel_scope.cancel()


async def consume(session: DaemonSessionClient) -> None:
    async with session.events() as events:
        async for _ in events:
            pass


@pytest.mark.parametrize("transport", ALL_TRANSPORTS)
async def test_release_when_the_caller_gives_up(transport: str, autojump_clock: Clock) -> None:
    """CLI-002, CLI-013 point 4, C-104: 20 times given up after a second; each is cancelled and gives its place back."""
    async with (
        fake_daemon(wait_for_cancel) as daemon,
        client_of(daemon, transport, max_pending_prompts_per_session=1) as client,
    ):
        session = await DaemonSessionClient.create_or_attach(client)
        for _ in range(20):
            begun = trio.current_time()
            with trio.move_on_after(1) as scope:
                await session.prompt("long")
            assert scope.cancelled_caught
            assert trio.current_time() - begun < 1.2
            assert client.counters.count(session.session_id) == 0
        await trio.sleep(1)
        assert daemon.sessions[session.session_id].turns == []
        daemon.agent = echo_done
        assert (await session.prompt("normal")).stop_reason == "end_turn"


async def echo_done(turn: Turn) -> str:
    return "end_turn"


async def test_release_when_the_stream_ends_first(autojump_clock: Clock) -> None:
    """CLI-013 point 5, CLI-016: closing the subscription fails every prompt it was to settle."""
    async with fake_daemon(wait_for_cancel) as daemon, client_of(daemon) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        failures = []

        async def prompt() -> None:
            try:
                await session.prompt("x")
            except DaemonStreamEndedError as exc:
                failures.append(exc)

        async with trio.open_nursery() as nursery:
            async with session.events():
                for _ in range(3):
                    nursery.start_soon(prompt)
                await eventually(lambda: len(daemon.sessions[session.session_id].turns) == 3)
                await trio.testing.wait_all_tasks_blocked()
        assert len(failures) == 3
        assert client.counters.count(session.session_id) == 0


async def test_the_servers_refusal_is_another_error(autojump_clock: Clock) -> None:
    """CLI-014, CLI-044: 503 prompt_queue_full is the daemon's, with its numbers and hint; it is not retried."""
    async with fake_daemon() as daemon, client_of(daemon) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        route = f"POST /session/{session.session_id}/prompt"
        daemon.overrides[route] = answer_queue_full
        with pytest.raises(DaemonPromptQueueFullError) as caught:
            await session.prompt("x")
        assert not isinstance(caught.value, DaemonPendingPromptLimitError)
        assert (caught.value.session_id, caught.value.limit, caught.value.pending_count) == ("s", 5, 5)
        assert (caught.value.status, caught.value.retry_after) == (503, 5.0)
        assert daemon.calls(route) == 1


@pytest.mark.parametrize("transport", ["acp-http", "acp-ws"])
async def test_the_servers_refusal_on_acp(transport: str, autojump_clock: Clock) -> None:
    """CLI-014, CLI-039: the JSON-RPC refusal is the same class as the 503."""
    async with fake_daemon() as daemon, client_of(daemon, transport) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        data = {"errorKind": "prompt_queue_full", "sessionId": "s", "limit": 5, "pendingCount": 5}
        daemon.refusals["session/prompt"] = [{"code": -32603, "message": "full", "data": data}]
        with pytest.raises(DaemonPromptQueueFullError) as caught:
            await session.prompt("x")
        assert (caught.value.limit, caught.value.pending_count, caught.value.status) == (5, 5, 503)
        daemon.refusals["session/prompt"] = [{"code": -32603, "message": "Internal error"}]
        with pytest.raises(JsonRpcError):
            await session.prompt("x")
        assert client.counters.count(session.session_id) == 0
        assert (await session.prompt("x")).stop_reason == "end_turn"


async def test_submitting_reserves_nothing(autojump_clock: Clock) -> None:
    """CLI-017."""
    async with fake_daemon(wait_for_cancel) as daemon, client_of(daemon, max_pending_prompts_per_session=1) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        receipts = [await session.submit_prompt("x") for _ in range(4)]
        receipts.append(await client.submit_prompt(session.session_id, "x"))
        assert len({receipt.prompt_id for receipt in receipts}) == 5
        assert client.counters.count(session.session_id) == 0


async def test_local_reservations_always_come_back(autojump_clock: Clock) -> None:
    """C-102: ten failures of each kind, then two prompts go out, the third is refused here; without a limit it goes."""
    async with fake_daemon(wait_for_cancel) as daemon:
        async with client_of(daemon, max_pending_prompts_per_session=2) as client, trio.open_nursery() as nursery:
            session = await DaemonSessionClient.create_or_attach(client)
            route = f"POST /session/{session.session_id}/prompt"
            for override in (answer_500, answer_garbage):
                daemon.overrides[route] = override
                for _ in range(10):
                    with pytest.raises(DaemonError):
                        await session.prompt("x")
            daemon.overrides.clear()
            daemon.network.refuse = True
            for _ in range(10):
                with trio.move_on_after(10), pytest.raises(DaemonConnectionError):
                    await session.prompt("x")
                await trio.sleep(5)
            daemon.network.refuse = False
            for _ in range(10):
                with trio.move_on_after(0.5):
                    await session.prompt("x")
            daemon.overrides[f"GET /session/{session.session_id}/events"] = gone
            daemon.overrides[f"POST /session/{session.session_id}/resume"] = gone
            for _ in range(10):
                with pytest.raises(DaemonStreamEndedError):
                    await session.prompt("x")
            daemon.overrides.clear()
            await hold(daemon, session, nursery, 2)
            sent = daemon.calls(route)
            with pytest.raises(DaemonPendingPromptLimitError):
                await session.prompt("x")
            assert daemon.calls(route) == sent
            nursery.cancel_scope.cancel()
        async with client_of(daemon, max_pending_prompts_per_session=None) as client, trio.open_nursery() as nursery:
            await hold(daemon, DaemonSessionClient(client, session.session_id), nursery, 3)
            nursery.cancel_scope.cancel()


async def gone(exchange: Exchange) -> None:
    await exchange.answer(404, {"error": "no", "code": "session_not_found"})
