"""The client cases that concern lifetimes and ambiguity: C-100, C-104, C-105, C-108, CLI-001, CLI-002, CLI-005."""

from __future__ import annotations

import contextlib
import gc
import random
import warnings

import pytest
import trio
import trio.testing

from client import (
    DaemonClient,
    DaemonConnectionError,
    DaemonSessionClient,
    DaemonStreamEndedError,
    DaemonTimeoutError,
    DaemonTransportClosedError,
    PromptMayBeAcceptedError,
    SessionRequest,
    open_daemon_client,
    open_tcp,
)
from client.daemon import IDEMPOTENCY_FEATURE
from tests.support.fake_daemon import (
    ALL_TRANSPORTS,
    FakeDaemon,
    Turn,
    client_of,
    eventually,
    fake_daemon,
    wait_for_cancel,
)
from tests.support.scripted_server import Cut, Exchange, loopback

Clock = trio.testing.MockClock


@pytest.mark.parametrize(
    ("manner", "transport"),
    [
        ("break", "rest"),
        ("raise", "rest"),
        ("cancel", "rest"),
        ("bare break", "rest"),
        ("break", "acp-http"),
        ("bare break", "acp-http"),
    ],
)
async def test_leaving_the_loop_frees_the_connection(manner: str, transport: str, autojump_clock: Clock) -> None:
    """C-100: a hundred subscriptions left early; no subscriber and no socket is left, and nothing warns."""
    async with fake_daemon() as daemon, client_of(daemon, transport) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        fake = daemon.sessions[session.session_id]
        fake.publish("x", {})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(100):
                await take_one(session, manner)
            gc.collect()
        standing = 0 if transport == "rest" else 2
        await eventually(lambda: daemon.streams == standing, within=2)
        streams_and_keepalive = standing + 8
        assert len(daemon.network.open) <= streams_and_keepalive


async def take_one(session: DaemonSessionClient, manner: str) -> None:
    if manner == "break":
        async with session.events(cursor=0) as events:
            async for _ in events:
                break
    elif manner == "bare break":
        async for _ in session.events(cursor=0):
            break
    elif manner == "raise":
        with pytest.raises(KeyError):
            await raise_in_the_loop(session)
    else:
        with trio.CancelScope() as scope:
            async with session.events(cursor=0) as events:
                async for _ in events:
                    scope.cancel()
                    await trio.sleep_forever()


async def raise_in_the_loop(session: DaemonSessionClient) -> None:
    async with session.events(cursor=0) as events:
        async for _ in events:
            raise KeyError


@pytest.mark.parametrize("transport", ALL_TRANSPORTS)
async def test_clients_close_in_any_order(transport: str, autojump_clock: Clock) -> None:
    """C-105: A, then C, then B; and one is closed by another task. The others go on working until their turn."""
    async with fake_daemon() as daemon, trio.open_nursery() as nursery:
        clients = [
            DaemonClient("http://d", nursery=nursery, transport=transport, connect=daemon.network.connect)
            for _ in range(4)
        ]
        sessions = [await DaemonSessionClient.create_or_attach(client) for client in clients]
        for index in (0, 2, 1):
            await sessions[index].prompt("x")
            await clients[index].aclose()
            await sessions[3].prompt("x")
            with pytest.raises((DaemonTransportClosedError, DaemonStreamEndedError)):
                await sessions[index].prompt("x")
        nursery.start_soon(clients[3].aclose)
        await eventually(lambda: clients[3].transport.closed and not daemon.network.open)
        assert daemon.network.open == []


async def test_closing_wakes_everybody(autojump_clock: Clock) -> None:
    """CLI-001: consumers see the end, waiting prompts fail, calls under way say why; no task is left."""
    async with fake_daemon(wait_for_cancel) as daemon:
        for transport in ALL_TRANSPORTS:
            outcomes: list[str] = []
            async with trio.open_nursery() as nursery:
                client = DaemonClient("http://d", nursery=nursery, transport=transport, connect=daemon.network.connect)
                session = await DaemonSessionClient.create_or_attach(client)
                nursery.start_soon(note, outcomes, session.prompt("x"))
                nursery.start_soon(note, outcomes, consume(session))
                await trio.sleep(1)
                await client.aclose()
            assert sorted(outcomes) == ["DaemonStreamEndedError", "end"]


async def note(outcomes: list[str], awaitable: object) -> None:
    try:
        await awaitable  # type: ignore[misc]  # a coroutine
    except Exception as exc:
        outcomes.append(type(exc).__name__)
    else:
        outcomes.append("end")


async def consume(session: DaemonSessionClient) -> None:
    async with session.events() as events:
        async for _ in events:
            pass


@pytest.mark.parametrize("transport", ALL_TRANSPORTS)
async def test_a_cancelled_block_leaves_nothing(transport: str, autojump_clock: Clock) -> None:
    """CLI-001, CLI-002: cancelling everything at any moment ends promptly and closes every connection."""
    async with fake_daemon(wait_for_cancel) as daemon:
        for steps in range(0, 80, 2):
            with trio.CancelScope() as scope:
                daemon.nursery.start_soon(cancel_after, steps, scope)
                async with client_of(daemon, transport) as client:
                    session = await DaemonSessionClient.create_or_attach(client)
                    async with session.events(), trio.open_nursery() as nursery:
                        nursery.start_soon(session.prompt, "x")
                        nursery.start_soon(session.set_mode, "plan")
                        await trio.sleep_forever()
            assert daemon.network.open == []


async def cancel_after(steps: int, scope: trio.CancelScope) -> None:
    for _ in range(steps):
        await trio.lowlevel.checkpoint()
    scope.cancel()


async def test_errors_of_the_block_come_out_as_they_are(autojump_clock: Clock) -> None:
    """CLI-001: the client's nursery does not wrap the caller's exceptions."""
    async with fake_daemon() as daemon:
        with pytest.raises(KeyError):
            async with open_daemon_client("http://d", connect=daemon.network.connect):
                raise KeyError


@pytest.mark.parametrize("transport", ALL_TRANSPORTS)
async def test_giving_up_a_queued_prompt_spares_the_running_one(transport: str, autojump_clock: Clock) -> None:
    """CLI-002: a cancel would end the running turn, so a waiting prompt is taken out, or cancelled when its turn comes."""
    async with fake_daemon(wait_for_cancel) as daemon, client_of(daemon, transport) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        fake = daemon.sessions[session.session_id]
        outcomes: list[str] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, outcomes, session.prompt("running"))
            await eventually(lambda: len(fake.turns) == 1)
            running = fake.turns[0]
            with trio.move_on_after(1):
                await session.prompt("queued")
            await trio.sleep(1)
            assert not running.cancelled.is_set()
            running.cancelled.set()
            await eventually(lambda: fake.turns == [])
        assert outcomes == ["end"]


@pytest.mark.parametrize("behind_another", [False, True], ids=["running", "queued"])
async def test_a_rest_prompt_given_up_before_its_acceptance_is_read(
    behind_another: bool, autojump_clock: Clock
) -> None:
    """CLI-002, REST-064: the daemon has it and its 202 is under way, so closing the request would leave it running."""
    async with fake_daemon(wait_for_cancel) as daemon, client_of(daemon) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        fake = daemon.sessions[session.session_id]
        if behind_another:
            daemon.start_turn(fake, "somebody else's")

        async def answer_late(exchange: Exchange) -> None:
            turn = daemon.start_turn(fake, "mine")
            scope.cancel()
            await trio.sleep(0.5)
            await exchange.answer(202, {"promptId": turn.prompt_id, "lastEventId": 0, "eventEpoch": fake.epoch})

        daemon.overrides[f"POST /session/{session.session_id}/prompt"] = answer_late
        with trio.CancelScope() as scope:
            await session.prompt("mine")
        assert scope.cancelled_caught
        assert client.counters.count(session.session_id) == 0
        await eventually(lambda: [turn.text for turn in fake.turns] == ["somebody else's"] * behind_another)


async def test_a_rest_prompt_given_up_is_not_waited_for_long(autojump_clock: Clock) -> None:
    """CLI-002, REST-064: a request that is not answered soon is closed, which cancels what has not been answered."""
    async with fake_daemon() as daemon, client_of(daemon) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        gone = trio.Event()

        async def never(exchange: Exchange) -> None:
            scope.cancel()
            await exchange.wait_gone()
            gone.set()

        daemon.overrides[f"POST /session/{session.session_id}/prompt"] = never
        begun = trio.current_time()
        with trio.CancelScope() as scope:
            await session.prompt("x")
        assert scope.cancelled_caught
        assert trio.current_time() - begun < 5
        await gone.wait()
        assert daemon.calls(f"POST /session/{session.session_id}/cancel") == 0


async def test_a_rest_prompt_given_up_and_refused(autojump_clock: Clock) -> None:
    """CLI-002: whoever gave up is told nothing but that."""
    async with fake_daemon() as daemon, client_of(daemon) as client:
        session = await DaemonSessionClient.create_or_attach(client)

        async def refuse_late(exchange: Exchange) -> None:
            scope.cancel()
            await trio.sleep(0.5)
            await exchange.answer(503, {"error": "full", "code": "prompt_queue_full"})

        daemon.overrides[f"POST /session/{session.session_id}/prompt"] = refuse_late
        with trio.CancelScope() as scope:
            await session.prompt("x")
        assert scope.cancelled_caught


async def test_a_rest_prompt_given_up_while_dialling(autojump_clock: Clock) -> None:
    """CLI-002: nothing has left, so there is no answer to wait for."""
    async with fake_daemon() as daemon:
        stuck = False

        async def connect(host: str, port: int) -> trio.abc.Stream:
            if stuck:
                await trio.sleep_forever()
            return await daemon.network.connect(host, port)

        async with open_daemon_client("http://daemon", connect=connect) as client:
            session = await DaemonSessionClient.create_or_attach(client)
            await trio.sleep(60)
            stuck = True
            begun = trio.current_time()
            with trio.move_on_after(1):
                await session.prompt("x")
            assert trio.current_time() - begun == 1


async def test_a_prompt_handed_over_as_its_caller_gives_up(autojump_clock: Clock) -> None:
    """CLI-017: where the 202 comes in time the caller has the receipt, and with it the say over the prompt."""
    async with fake_daemon(wait_for_cancel) as daemon, client_of(daemon) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        fake = daemon.sessions[session.session_id]

        async def answer_late(exchange: Exchange) -> None:
            turn = daemon.start_turn(fake, "mine")
            scope.cancel()
            await trio.sleep(0.5)
            await exchange.answer(202, {"promptId": turn.prompt_id, "lastEventId": 0, "eventEpoch": fake.epoch})

        daemon.overrides[f"POST /session/{session.session_id}/prompt"] = answer_late
        with trio.CancelScope() as scope:
            receipt = await session.submit_prompt("mine")
        assert receipt.prompt_id == fake.turns[0].prompt_id


@pytest.mark.parametrize("arrives", [False, True], ids=["swallowed", "arrives"])
@pytest.mark.parametrize("text", ["again", "other"])
async def test_a_prompt_given_up_on_its_way(text: str, arrives: bool, autojump_clock: Clock) -> None:
    """CLI-002, C-104: whether it arrived or not, it leaves nothing behind, and the next one can be cancelled."""
    async with fake_daemon(wait_for_cancel) as daemon, client_of(daemon, "acp-http") as client:
        session = await DaemonSessionClient.create_or_attach(client)
        fake = daemon.sessions[session.session_id]

        async def no_answer(exchange: Exchange) -> None:
            message = exchange.json()
            if message.get("method") != "session/prompt":
                await daemon._acp(exchange)
                return
            del daemon.overrides["POST /acp"]
            if arrives:
                daemon._dispatch(daemon.connections[exchange.headers["acp-connection-id"]], message)
            await trio.sleep_forever()

        daemon.overrides["POST /acp"] = no_answer
        with trio.move_on_after(1):
            await session.prompt("again")
        with trio.move_on_after(1):
            await session.prompt(text)
        await eventually(lambda: fake.turns == [], within=5)
        await eventually(lambda: len(session.link.ledger) == 0)
        assert daemon.calls("rpc session/cancel") == 2


@pytest.mark.parametrize("transport", ["acp-http", "acp-ws"])
async def test_giving_up_a_prompt_spares_the_turn_of_another_client(transport: str, autojump_clock: Clock) -> None:
    """CLI-002, C-057: on /acp a cancel ends the turn that runs, so the one who waits behind it sends none until its own."""
    async with (
        fake_daemon(wait_for_cancel) as daemon,
        client_of(daemon, transport) as client,
        client_of(daemon, transport) as other,
    ):
        session = await DaemonSessionClient.create_or_attach(client)
        fake = daemon.sessions[session.session_id]
        theirs = await DaemonSessionClient.resume(other, session.session_id)
        outcomes: list[str] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, outcomes, theirs.prompt("running"))
            await eventually(lambda: len(fake.turns) == 1)
            await trio.sleep(1)
            with trio.move_on_after(1):
                await session.prompt("queued")
            await trio.sleep(1)
            assert not fake.turns[0].cancelled.is_set()
            fake.turns[0].cancelled.set()
        assert outcomes == ["end"]


@pytest.mark.parametrize("transport", ["rest", "acp-http"])
async def test_a_subscription_given_up_while_it_opens(transport: str, autojump_clock: Clock) -> None:
    """C-100: the place of the session's one consumer is free again, whoever still holds the stream object."""
    async with fake_daemon() as daemon, client_of(daemon, transport) as client:
        session = await DaemonSessionClient.create_or_attach(client)

        async def never(exchange: Exchange) -> None:
            await trio.sleep_forever()

        route = "GET /acp" if transport == "acp-http" else f"GET /session/{session.session_id}/events"
        daemon.overrides[route] = never
        stream = session.events()
        with trio.move_on_after(1):
            async with stream:
                raise AssertionError("not open")
        assert not session.link.subscribed
        del daemon.overrides[route]
        async with session.events() as events:
            await session.prompt("x")
            async for event in events:
                if event.type == "turn_complete":
                    break


async def test_a_cancelled_dial_raises_cancelled_alone() -> None:
    """CLI-002: Trio wraps it in a group, which nobody who looks for a cancellation would find."""
    with trio.CancelScope() as scope:
        scope.cancel()
        with pytest.raises(trio.Cancelled):
            await open_tcp("127.0.0.1", 1)
    with pytest.raises(OSError, match="connect"):
        await open_tcp("127.0.0.1", 1)


async def test_a_prompt_whose_dial_is_cancelled_in_a_group(autojump_clock: Clock) -> None:
    """CLI-002: however the cancellation comes out of the dialling, nothing stays in the ledger."""
    async with fake_daemon() as daemon:
        stuck = False

        async def connect(host: str, port: int) -> trio.abc.Stream:
            async with trio.open_nursery():
                if stuck:
                    await trio.sleep_forever()
                return await daemon.network.connect(host, port)

        async with open_daemon_client("http://daemon", transport="acp-http", connect=connect) as client:
            session = await DaemonSessionClient.create_or_attach(client)
            await session.prompt("x")
            await trio.sleep(10)
            stuck = True
            with trio.move_on_after(1):
                await session.prompt("x")
            stuck = False
            await eventually(lambda: len(session.link.ledger) == 0)


async def test_a_prompt_given_up_before_it_left(autojump_clock: Clock) -> None:
    """CLI-002: nothing was sent, so nothing is cancelled: the turn that runs is somebody else's."""
    async with fake_daemon() as daemon, client_of(daemon, "acp-http") as client:
        session = DaemonSessionClient(client, daemon.new_session().id)

        async def never(exchange: Exchange) -> None:
            await trio.sleep_forever()

        daemon.overrides["POST /acp"] = never
        with trio.move_on_after(1):
            await session.prompt("x")
        del daemon.overrides["POST /acp"]
        assert len(session.link.ledger) == 0
        await trio.sleep(60)
        assert daemon.calls("rpc session/cancel") == 0


async def test_an_ambiguous_post_is_not_repeated(autojump_clock: Clock) -> None:
    """C-108: the server read it and hung up: "may have been accepted", sent once."""
    async with fake_daemon() as daemon, client_of(daemon) as client:
        session = await DaemonSessionClient.create_or_attach(client)

        async def swallow(exchange: Exchange) -> None:
            raise Cut

        route = f"POST /session/{session.session_id}/prompt"
        daemon.overrides[route] = swallow
        with pytest.raises(PromptMayBeAcceptedError) as caught:
            await session.prompt("x")
        assert caught.value.maybe_sent
        assert len(caught.value.idempotency_key) == 32
        assert daemon.calls(route) == 1


async def test_an_ambiguous_post_is_repeated_where_it_is_recognised(autojump_clock: Clock) -> None:
    """C-108, issue 3: with a daemon that honours Idempotency-Key the same key is sent again, and one prompt runs."""
    async with fake_daemon() as daemon, client_of(daemon) as client:
        daemon.capabilities["features"] = [IDEMPOTENCY_FEATURE]
        session = await DaemonSessionClient.create_or_attach(client)
        keys: list[str] = []
        known: dict[str, object] = {}

        async def swallow_twice(exchange: Exchange) -> None:
            key = exchange.headers["idempotency-key"]
            keys.append(key)
            if key not in known:
                turn = daemon.start_turn(daemon.sessions[session.session_id], "x")
                known[key] = {"promptId": turn.prompt_id, "lastEventId": 0, "eventEpoch": "epoch-1"}
            if len(keys) < 3:
                raise Cut
            await exchange.answer(202, known[key])

        daemon.overrides[f"POST /session/{session.session_id}/prompt"] = swallow_twice
        assert (await session.prompt("x")).stop_reason == "end_turn"
        assert len(keys) == 3
        assert len(set(keys)) == 1
        assert len(known) == 1
        await session.prompt("y")
        assert len(set(keys)) == 2


async def test_what_was_never_sent_is_not_ambiguous(autojump_clock: Clock) -> None:
    """C-108: a refused connection is an ordinary failure."""
    async with fake_daemon() as daemon, client_of(daemon) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        await trio.sleep(10)
        daemon.network.refuse = True
        with pytest.raises(DaemonConnectionError) as caught:
            await session.prompt("x")
        assert not isinstance(caught.value, PromptMayBeAcceptedError)
        assert not caught.value.maybe_sent


async def test_calls_have_a_deadline_and_prompts_have_none(autojump_clock: Clock) -> None:
    """client-sdk section 1: 30 s by default for calls; not for prompts, whose answer may take hours."""

    async def never(exchange: Exchange) -> None:
        await trio.sleep_forever()

    async def much_later(exchange: Exchange) -> None:
        await trio.sleep(4000)
        await exchange.answer(200, {"stopReason": "end_turn"})

    async with fake_daemon() as daemon, client_of(daemon) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        daemon.overrides["GET /health"] = never
        begun = trio.current_time()
        with pytest.raises(DaemonTimeoutError):
            await client.health()
        assert round(trio.current_time() - begun) == 30
        daemon.overrides[f"POST /session/{session.session_id}/prompt"] = much_later
        assert (await session.prompt("x")).stop_reason == "end_turn"


@pytest.mark.parametrize(
    ("options", "asked", "request_timeout", "expected"),
    [
        ({}, None, None, 70),
        ({"fetch_timeout": 12}, None, None, 12),
        ({}, 20_000, None, 30),
        ({"fetch_timeout": 12}, 20_000, 3, 3),
    ],
)
async def test_how_long_a_restore_may_take(
    options: dict[str, float],
    asked: int | None,
    request_timeout: float | None,
    expected: float,
    autojump_clock: Clock,
) -> None:
    """client-sdk section 1: the caller's, else an explicit fetch timeout, else the daemon's plus 10 s, else 70 s."""

    async def never(exchange: Exchange) -> None:
        await trio.sleep_forever()

    async with fake_daemon() as daemon, client_of(daemon, **options) as client:
        daemon.new_session("s")
        if asked is not None:
            daemon.capabilities["limits"]["sessionRestoreTimeoutMs"] = asked
            await client.capabilities()
        daemon.overrides["POST /session/s/load"] = never
        begun = trio.current_time()
        with pytest.raises(DaemonTimeoutError):
            await client.load_session("s", SessionRequest(timeout=request_timeout))
        assert round(trio.current_time() - begun) == expected


async def test_one_subscription_at_a_time(autojump_clock: Clock) -> None:
    """client-sdk 2.4: a second one raises."""
    async with fake_daemon() as daemon, client_of(daemon) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        async with session.events():
            with pytest.raises(RuntimeError):
                async with session.events():
                    pass
        async with session.events():
            pass


async def test_cookies_and_separate_connections(autojump_clock: Clock) -> None:
    """CLI-005: cookies are kept per client, and streams never use up the pool."""

    async def set_cookie(exchange: Exchange) -> None:
        await exchange.answer(200, {"status": "ok"}, {"Set-Cookie": "affinity=node7; Path=/"})

    async with fake_daemon() as daemon, client_of(daemon) as client, client_of(daemon) as other:
        daemon.overrides["GET /health"] = set_cookie
        await client.health()
        sessions = [await DaemonSessionClient.create_or_attach(client) for _ in range(30)]
        async with trio.open_nursery() as nursery:
            for session in sessions:
                nursery.start_soon(consume, session)
            await eventually(lambda: daemon.streams == 30)
            with trio.fail_after(1):
                await sessions[0].heartbeat()
            nursery.cancel_scope.cancel()
        mine = [r for r in daemon.requests if r.route != "GET /health"]
        assert {r.headers.get("cookie") for r in mine} == {"affinity=node7"}
        await other.capabilities()
        assert daemon.requests[-1].headers.get("cookie") is None


async def test_the_same_seed_gives_the_same_run(autojump_clock: Clock) -> None:
    """The simulation's need: with streams, seed and clock given, nothing else decides."""

    async def run(seed: int) -> list[tuple[float, str, str | None]]:
        begun = trio.current_time()
        log: list[tuple[float, str, str | None]] = []

        async def flaky(exchange: Exchange) -> None:
            log.append((round(trio.current_time() - begun, 6), exchange.route, exchange.headers.get("idempotency-key")))
            if exchange.route.endswith("/events") and len(log) < 12:
                raise Cut
            del daemon.overrides[exchange.route]
            await daemon.handle(exchange)
            daemon.overrides[exchange.route] = flaky

        async with fake_daemon() as daemon, client_of(daemon, rng=random.Random(seed)) as client:
            session = await DaemonSessionClient.create_or_attach(client)
            for route in (f"GET /session/{session.session_id}/events", f"POST /session/{session.session_id}/prompt"):
                daemon.overrides[route] = flaky
            await session.prompt("x")
        return log

    assert await run(1) == await run(1)
    assert await run(1) != await run(2)


async def test_on_a_real_socket() -> None:
    """The same client over loopback TCP: prompt, events, a socket of every kind."""
    async with trio.open_nursery() as nursery:
        daemon = FakeDaemon(nursery)
        async with loopback(daemon.handle) as url:
            for transport in ALL_TRANSPORTS:
                with trio.fail_after(10):
                    async with open_daemon_client(url, transport=transport) as client:
                        session = await DaemonSessionClient.create_or_attach(client)
                        async with session.events() as events:
                            assert (await session.prompt("hello")).stop_reason == "end_turn"
                            kinds = [(await anext(events)).type]
                            while kinds[-1] != "turn_complete":
                                kinds.append((await anext(events)).type)
        nursery.cancel_scope.cancel()


async def slow_turn(turn: Turn) -> str:
    await trio.sleep(5)
    return "end_turn"


@pytest.mark.parametrize("transport", ALL_TRANSPORTS)
async def test_the_client_alone_can_prompt(transport: str, autojump_clock: Clock) -> None:
    """client-sdk 2.3: DaemonClient.prompt needs no session object."""
    async with fake_daemon(slow_turn) as daemon, client_of(daemon, transport) as client:
        created = await client.create_session()
        assert (await client.prompt(created.session_id, [{"type": "text", "text": "x"}])).stop_reason == "end_turn"
        await client.set_mode(created.session_id, "plan")
        assert client.counters.count(created.session_id) == 0


@pytest.mark.parametrize("subscribed", [False, True])
async def test_an_old_daemon_answers_a_prompt_with_its_outcome(subscribed: bool, autojump_clock: Clock) -> None:
    """REST-063: the blocking form, 200 with the stop reason, is an outcome like any other."""
    async with fake_daemon() as daemon, client_of(daemon) as client:
        session = await DaemonSessionClient.create_or_attach(client)

        async def blocking(exchange: Exchange) -> None:
            await trio.sleep(20)
            await exchange.answer(200, {"stopReason": "max_tokens"})

        daemon.overrides[f"POST /session/{session.session_id}/prompt"] = blocking
        async with contextlib.AsyncExitStack() as stack:
            if subscribed:
                await stack.enter_async_context(session.events())
            assert (await session.prompt("x")).stop_reason == "max_tokens"
