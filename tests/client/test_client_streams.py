"""Streams that break: CLI-020 to CLI-027, C-101, C-103, C-107."""

from __future__ import annotations

import itertools
import json
import logging
import random

import pytest
import trio
import trio.testing

from client import (
    DaemonConnectionError,
    DaemonHttpError,
    DaemonSessionClient,
    DaemonStreamEndedError,
    Event,
    ReconnectPolicy,
    SessionInfo,
    SseFramingError,
)
from client.backoff import Backoff
from client.prompts import REMEMBERED_TURNS
from tests.support.fake_daemon import FakeDaemon, FakeSession, Turn, client_of, eventually, fake_daemon, wait_for_cancel
from tests.support.scripted_server import Cut, Exchange

Clock = trio.testing.MockClock
REPLAYING = ("rest", "acp-http")


async def collect(session: DaemonSessionClient, count: int) -> list[Event]:
    """The next ``count`` events that have an id."""
    seen: list[Event] = []
    async with session.events() as events:
        async for event in events:
            if event.id is not None:
                seen.append(event)
            if len(seen) == count:
                break
    return seen


def attach(client: object, session: FakeSession, cursor: int | None = 0) -> DaemonSessionClient:
    return DaemonSessionClient(client, SessionInfo(session.id), cursor=cursor)  # type: ignore[arg-type]


def say(session: FakeSession, text: str) -> None:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    session.publish("session_update", {"sessionId": session.id, "update": update})


def cursors(daemon: FakeDaemon) -> list[str | None]:
    """The cursors of all session streams, in order."""
    return [
        request.headers.get("last-event-id")
        for request in daemon.requests
        if request.method == "GET" and ("acp-session-id" in request.headers or request.path.endswith("/events"))
    ]


@pytest.mark.parametrize(
    ("transport", "cut_bytes", "total"),
    [
        ("rest", 0, 1000),
        ("rest", 10, 200),
        ("rest", 60, 200),
        ("rest", 10_000, 200),
        ("acp-http", 0, 200),
        ("acp-http", 10, 200),
        ("acp-http", 60, 1000),
        ("acp-http", 10_000, 200),
    ],
)
async def test_resume_is_invisible(transport: str, cut_bytes: int, total: int, autojump_clock: Clock) -> None:
    """C-101, CLI-024, CLI-026: the stream is cut after every 10 events, also inside a frame; 1,000 events arrive once
    each, in order, and every reconnect carries the id of the last complete event."""
    async with fake_daemon() as daemon, client_of(daemon, transport) as client:
        created = await DaemonSessionClient.create_or_attach(client)
        fake = daemon.sessions[created.session_id]
        for number in range(1, total + 1):
            say(fake, f"w{number}")
        daemon.cut_after, daemon.cut_bytes = 10, cut_bytes
        events = await collect(created, total)
        assert [event.id for event in events] == list(range(1, total + 1))
        assert [event.text for event in events] == [f"w{number}" for number in range(1, total + 1)]
        sent = [int(cursor) for cursor in cursors(daemon) if cursor is not None]
        step = 11 if cut_bytes == 10_000 else 10
        assert sent == list(range(0, total, step))


@pytest.mark.parametrize("transport", REPLAYING)
async def test_reconnects_carry_cursor_and_epoch(transport: str, autojump_clock: Clock) -> None:
    """CLI-024: the epoch comes from the stream's header and goes back with the cursor; without a cursor neither does."""
    async with fake_daemon() as daemon, client_of(daemon, transport) as client:
        fake = daemon.new_session()
        if transport == "acp-http":
            session = await DaemonSessionClient.resume(client, fake.id)
        else:
            session = attach(client, fake, cursor=None)
        async with session.events() as events:
            await events.aclose()
        assert cursors(daemon)[0] is None
        daemon.requests.clear()
        daemon.cut_after = 1
        async with session.events(cursor=0) as events:
            for number in (1, 2, 3):
                say(fake, "x")
                event = await anext(events)
                while event.id is None:
                    event = await anext(events)
                assert event.id == number
        streams = [r for r in daemon.requests if "last-event-id" in r.headers]
        assert [r.headers["last-event-id"] for r in streams][:3] == ["0", "1", "2"]
        assert all(r.headers["x-qwen-event-epoch"] == fake.epoch for r in streams[1:])


@pytest.mark.parametrize("transport", REPLAYING)
async def test_frames_without_id_never_move_the_cursor(transport: str, autojump_clock: Clock) -> None:
    """CLI-021: neither a synthetic frame nor a reply changes it; nor does an older id move it back."""
    async with fake_daemon() as daemon, client_of(daemon, transport) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        fake = daemon.sessions[session.session_id]
        say(fake, "one")
        seen = []
        async with session.events() as events:
            async for event in events:
                seen.append((event.type, session.cursor))
                if event.type == "replay_complete":
                    break
        assert seen == [("session_update", 1), ("replay_complete", 1)]


@pytest.mark.parametrize("bad", ["9007199254740992", "-1", "1.0", "abc", "99999999999999999999"])
async def test_an_unacceptable_id_line_is_no_cursor(bad: str, autojump_clock: Clock) -> None:
    """CLI-021, client-sdk 7.7 test 8: on /acp the frame is delivered, without a cursor."""

    async def stream(exchange: Exchange) -> None:
        if "acp-session-id" not in exchange.headers:
            await exchange.open_sse()
            await exchange.wait_gone()
            return
        await exchange.open_sse()
        params = {"sessionId": "s", "update": {"sessionUpdate": "agent_message_chunk"}}
        message = json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params})
        await exchange.send(f"id: 4\ndata: {message}\n\nid: {bad}\ndata: {message}\n\n".encode())
        await exchange.wait_gone()

    async with fake_daemon() as daemon, client_of(daemon, "acp-http") as client:
        session = await DaemonSessionClient.create_or_attach(client)
        daemon.overrides["GET /acp"] = stream
        async with session.events() as events:
            assert (await anext(events)).id == 4
            assert (await anext(events)).id is None
        assert session.cursor == 4


async def test_the_server_sets_the_pace(autojump_clock: Clock) -> None:
    """CLI-022, CLI-026: retry: is the base of the back-off, the first attempt is immediate, later ones double."""
    times: list[float] = []

    async def stream(exchange: Exchange) -> None:
        times.append(trio.current_time())
        await exchange.open_sse(first=b"retry: 400\n\n")
        raise Cut

    policy = ReconnectPolicy(jitter=0.0, maximum=2.0, give_up_after=20)
    async with fake_daemon() as daemon, client_of(daemon, reconnect=policy) as client:
        fake = daemon.new_session()
        daemon.overrides[f"GET /session/{fake.id}/events"] = stream
        with pytest.raises(DaemonConnectionError):
            await collect(attach(client, fake), 1)
        gaps = [round(b - a, 3) for a, b in itertools.pairwise(times)]
        assert gaps[:5] == [0.0, 0.4, 0.8, 1.6, 2.0]
        assert all(gap == 2.0 for gap in gaps[4:])


def test_the_first_attempts_stay_within_the_grace() -> None:
    """CLI-026: with the defaults three attempts fall into the ten seconds a server waits, whatever the jitter."""
    for seed in range(200):
        backoff = Backoff(ReconnectPolicy(), random.Random(seed))
        delays = [backoff.next_delay(0.0) or 0.0 for _ in range(12)]
        assert delays[0] == 0.0
        assert sum(delays[:3]) <= 10
        assert max(delays) <= 30
        assert delays[1] >= 1.5
    assert len({Backoff(ReconnectPolicy(), random.Random(seed)).next_delay(0.0) for seed in range(5)}) == 1


def test_back_off_gives_up_and_starts_again() -> None:
    """CLI-026: progress resets it; without progress it ends; Retry-After is never shortened."""
    backoff = Backoff(ReconnectPolicy(give_up_after=10), random.Random(1))
    assert backoff.next_delay(0.0) == 0.0
    assert (backoff.next_delay(5.0, at_least=7.0) or 0) >= 7.0
    assert backoff.next_delay(10.0) is None
    backoff.reset()
    assert backoff.next_delay(11.0) == 0.0
    for _ in range(5000):
        assert (backoff.next_delay(11.0) or 0) <= 30


async def test_silence_is_death(autojump_clock: Clock) -> None:
    """CLI-023: 45 s without a byte end a stream; a heartbeat is a sign of life."""
    opened: list[float] = []

    async def stream(exchange: Exchange) -> None:
        opened.append(trio.current_time())
        await exchange.open_sse()
        if len(opened) == 1:
            for _ in range(10):
                await trio.sleep(40)
                await exchange.send(b": heartbeat\n\n")
        if len(opened) == 3:
            await exchange.send(b'data: {"v":1,"type":"x","id":1}\n\n')
        await trio.sleep_forever()

    async with fake_daemon() as daemon, client_of(daemon) as client:
        fake = daemon.new_session()
        daemon.overrides[f"GET /session/{fake.id}/events"] = stream
        await collect(attach(client, fake), 1)
        assert [round(at - opened[0]) for at in opened][:2] == [0, 445]
        assert len(opened) == 3


async def test_an_acceptance_told_after_its_outcome_was_forgotten(autojump_clock: Clock) -> None:
    """CLI-016: more ends of turns than are remembered lie between a prompt and the 202 for it; the outcome is asked for."""
    async with fake_daemon() as daemon, client_of(daemon) as client:
        fake = daemon.new_session()

        async def late(exchange: Exchange) -> None:
            for number in range(REMEMBERED_TURNS + 1):
                fake.publish("turn_complete", {"promptId": f"p{number}", "stopReason": "end_turn"}, f"p{number}")
            await trio.sleep(1)
            await exchange.answer(202, {"promptId": "p0", "lastEventId": 0, "accepted": True})

        async def outcome(exchange: Exchange) -> None:
            await exchange.answer(200, {"promptId": "p0", "state": "completed", "stopReason": "max_tokens"})

        daemon.overrides[f"POST /session/{fake.id}/prompt"] = late
        daemon.overrides[f"GET /session/{fake.id}/prompts/p0"] = outcome
        session = attach(client, fake)
        async with session.events():
            with trio.fail_after(60):
                assert (await session.prompt("x")).stop_reason == "max_tokens"


@pytest.mark.parametrize("transport", REPLAYING)
async def test_silence_limit_can_be_changed(transport: str, autojump_clock: Clock) -> None:
    """CLI-023: configurable, and the same for the connection stream of /acp."""
    async with fake_daemon() as daemon, client_of(daemon, transport, idle_timeout=5.0) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        async with session.events():
            await trio.sleep(4.9)
            before = len(daemon.requests)
            await trio.sleep(0.2)
        assert len(daemon.requests) > before


async def test_unauthorised_is_final(autojump_clock: Clock) -> None:
    """CLI-026: 401 is not tried again."""

    async def refuse(exchange: Exchange) -> None:
        await exchange.answer(401, {"error": "Unauthorized"})

    async with fake_daemon() as daemon, client_of(daemon) as client:
        fake = daemon.new_session()
        route = f"GET /session/{fake.id}/events"
        daemon.overrides[route] = refuse
        with pytest.raises(DaemonHttpError) as caught:
            await collect(attach(client, fake), 1)
        assert caught.value.status == 401
        assert daemon.calls(route) == 1


async def test_a_full_house_is_tried_again_when_it_says(autojump_clock: Clock) -> None:
    """CLI-026: 429 and 5xx are waited out, at least as long as Retry-After says."""
    answers = [429, 503]

    async def refuse(exchange: Exchange) -> None:
        if answers:
            await exchange.answer(answers.pop(0), {"error": "busy"}, {"Retry-After": "5"})
            return
        del daemon.overrides[route]
        await daemon.handle(exchange)

    async with fake_daemon() as daemon, client_of(daemon) as client:
        fake = daemon.new_session()
        say(fake, "x")
        route = f"GET /session/{fake.id}/events"
        daemon.overrides[route] = refuse
        begun = trio.current_time()
        await collect(attach(client, fake), 1)
        assert trio.current_time() - begun >= 10


async def test_the_network_comes_back(autojump_clock: Clock) -> None:
    """CLI-026: refused connections are tried again until the daemon is there."""
    async with fake_daemon() as daemon, client_of(daemon) as client:
        fake = daemon.new_session()
        say(fake, "x")
        daemon.network.refuse = True

        async def repair() -> None:
            await trio.sleep(120)
            daemon.network.refuse = False

        daemon.nursery.start_soon(repair)
        assert [event.id for event in await collect(attach(client, fake), 1)] == [1]
        assert 120 <= trio.current_time() <= 155


async def test_a_stream_that_never_ends_its_frame(autojump_clock: Clock) -> None:
    """CLI-020: 16 MiB without a separator end the stream with a framing error."""

    async def stream(exchange: Exchange) -> None:
        await exchange.open_sse()
        for _ in range(17):
            await exchange.send(b"x" * 1024 * 1024)
        await exchange.wait_gone()

    async with fake_daemon() as daemon, client_of(daemon) as client:
        fake = daemon.new_session()
        daemon.overrides[f"GET /session/{fake.id}/events"] = stream
        with pytest.raises(SseFramingError):
            await collect(attach(client, fake), 1)


async def test_one_bad_event_does_not_kill_the_stream(autojump_clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """C-107: reported once, no reconnect; unknown types and missing fields are events like any other."""

    async def stream(exchange: Exchange) -> None:
        await exchange.open_sse()
        for number in range(1, 11):
            body = {"v": 1, "id": number, "type": "session_update", "data": {}}
            if number == 7:
                body = {"v": 1, "id": 7, "type": "never_heard_of", "extra": [1], "data": {"deep": {}}}
            data = "{broken" if number == 5 else json.dumps(body)
            await exchange.send(f"id: {number}\ndata: {data}\n\n".encode())
        await exchange.wait_gone()

    async with fake_daemon() as daemon, client_of(daemon) as client:
        fake = daemon.new_session()
        route = f"GET /session/{fake.id}/events"
        daemon.overrides[route] = stream
        with caplog.at_level(logging.WARNING, "moorline.client"):
            events = await collect(attach(client, fake), 9)
        assert [event.id for event in events] == [1, 2, 3, 4, 6, 7, 8, 9, 10]
        assert events[5].type == "never_heard_of"
        assert [record.getMessage() for record in caplog.records if "bad event" in record.getMessage()] == [
            next(r.getMessage() for r in caplog.records)
        ]
        assert daemon.calls(route) == 1


async def test_the_unterminated_last_event_counts_if_it_is_whole(autojump_clock: Clock) -> None:
    """CLI-020: the stream ends without the blank line; complete JSON is an event, half of it is not."""
    texts = ['{"v":1,"id":1,"type":"a"}', '{"v":1,"id":2,"ty', '{"v":1,"id":2,"type":"b"}']

    async def stream(exchange: Exchange) -> None:
        await exchange.open_sse()
        await exchange.send(f"data: {texts.pop(0)}".encode())
        await exchange.finish()
        raise Cut

    async with fake_daemon() as daemon, client_of(daemon) as client:
        fake = daemon.new_session()
        daemon.overrides[f"GET /session/{fake.id}/events"] = stream
        assert [event.type for event in await collect(attach(client, fake), 2)] == ["a", "b"]
        assert cursors(daemon) == ["0", "1", "1"]


async def test_resync_reloads_the_state_on_rest(autojump_clock: Clock) -> None:
    """CLI-025, REST-092: surfaced first, then the state is loaded, then the stream goes on from the new cursor; no delta
    comes in between."""
    async with fake_daemon() as daemon, client_of(daemon) as client:
        fake = daemon.new_session()
        for number in range(10):
            say(fake, f"w{number}")
        fake.evict(5)
        session = attach(client, fake, cursor=2)
        seen = []
        async with session.events() as events:
            async for event in events:
                seen.append(event)
                if event.type == "session_reloaded":
                    say(fake, "after")
                if event.text == "after":
                    break
        kinds = [event.type for event in seen if event.type != "replay_complete"]
        assert kinds == ["state_resync_required", "session_reloaded", "session_update"]
        assert [entry["id"] for entry in seen[1].data["history"]] == [6, 7, 8, 9, 10]
        assert session.cursor == 11
        assert cursors(daemon) == ["2", "10"]


async def test_resync_on_acp_loses_nothing_that_is_left(autojump_clock: Clock) -> None:
    """CLI-025: /acp answers no history, so the stream goes on with the oldest event the ring still has."""
    async with fake_daemon() as daemon, client_of(daemon, "acp-http") as client:
        fake = daemon.new_session()
        for number in range(10):
            say(fake, f"w{number}")
        fake.evict(5)
        session = await DaemonSessionClient.resume(client, fake.id)
        async with session.events(cursor=2) as events:
            first = await anext(events)
            assert (first.type, first.data["reason"]) == ("state_resync_required", "ring_evicted")
            assert [(await anext(events)).id for _ in range(5)] == [6, 7, 8, 9, 10]
        assert daemon.calls("rpc session/load") == 1
        assert [c for c in cursors(daemon) if c is not None] == ["2", "5"]


@pytest.mark.parametrize("transport", REPLAYING)
async def test_another_epoch_voids_the_cursor(transport: str, autojump_clock: Clock) -> None:
    """CLI-021, CLI-025: ids start again at one after a restart, and every event of the new ring is delivered."""
    async with fake_daemon() as daemon, client_of(daemon, transport, reload_on_resync=False) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        fake = daemon.sessions[session.session_id]
        for _ in range(50):
            say(fake, "old")
        texts = []
        async with session.events() as events:
            async for event in events:
                if event.text:
                    texts.append((event.id, event.text))
                if event.id == 50 and event.text == "old":
                    fake.restart()
                    say(fake, "new one")
                    say(fake, "new two")
                if event.text == "new two":
                    break
        assert texts[50:] == [(1, "new one"), (2, "new two")]
        assert session.cursor == 2


async def test_a_replay_cut_by_its_budget_goes_on(autojump_clock: Clock) -> None:
    """CLI-025, ACP-015: replay_budget_exceeded means "come back for the rest", and nothing is lost."""
    starts = []

    async def stream(exchange: Exchange) -> None:
        start = int(exchange.headers["last-event-id"])
        starts.append(start)
        await exchange.open_sse()
        for number in range(start + 1, start + 4):
            await exchange.send(f'data: {{"v":1,"id":{number},"type":"x"}}\n\n'.encode())
        data = {"reason": "replay_budget_exceeded", "lastDeliveredId": start + 3, "earliestAvailableId": start + 4}
        notice = json.dumps({"v": 1, "type": "state_resync_required", "data": data})
        await exchange.send(f"data: {notice}\n\n".encode())
        await exchange.send(b'data: {"v":1,"id":100,"type":"live"}\n\n')
        await exchange.wait_gone()

    async with fake_daemon() as daemon, client_of(daemon) as client:
        fake = daemon.new_session()
        daemon.overrides[f"GET /session/{fake.id}/events"] = stream
        events = await collect(attach(client, fake), 9)
        assert [event.id for event in events] == list(range(1, 10))
        assert starts[:3] == [0, 3, 6]


async def test_the_end_of_the_session_ends_the_iteration(autojump_clock: Clock) -> None:
    """REST-087, CLI-001: session_closed is delivered, then the loop is over; nothing reconnects."""
    async with fake_daemon() as daemon, client_of(daemon) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        kinds = []
        async with session.events() as events:
            await client.close_session(session.session_id)
            async for event in events:
                kinds.append(event.type)
        assert kinds == ["replay_complete", "session_closed"]
        assert daemon.streams == 0


@pytest.mark.parametrize("end", ["session_closed", "session_died"])
@pytest.mark.parametrize("transport", REPLAYING)
async def test_a_former_end_of_the_session_does_not_end_the_iteration(
    transport: str, end: str, autojump_clock: Clock
) -> None:
    """REST-030, REST-087: a session that was loaded again goes on behind the end its replay still has; the next is final."""
    async with fake_daemon() as daemon, client_of(daemon, transport) as client:
        fake = daemon.new_session("known")
        say(fake, "before")
        fake.publish(end, {"sessionId": "known", "reason": "x"})
        say(fake, "after")
        session = attach(client, fake)
        seen: list[str] = []
        with trio.fail_after(30):
            async with session.events() as events:
                async for event in events:
                    seen.append(event.update_kind or event.type)
                    if event.type == "replay_complete":
                        fake.publish(end, {"sessionId": "known", "reason": "y"})
                        fake.closed = True
        chunk = "agent_message_chunk"
        assert [each for each in seen if each != "replay_complete"] == [chunk, end, chunk, end]


async def test_a_stream_that_is_gone_fails_the_prompt_soon(autojump_clock: Clock) -> None:
    """C-103: 202, two events, then the end and 404 for ever: a typed error within seconds, and the place is free."""
    async with fake_daemon(wait_for_cancel) as daemon, client_of(daemon) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        opened = []

        async def stream(exchange: Exchange) -> None:
            opened.append(exchange)
            if len(opened) > 1:
                await exchange.answer(404, {"error": "no", "code": "session_not_found"})
                return
            await exchange.open_sse()
            for number in (1, 2):
                await exchange.send(f'data: {{"v":1,"id":{number},"type":"x"}}\n\n'.encode())
            await exchange.finish()
            daemon.sessions.clear()

        daemon.overrides[f"GET /session/{session.session_id}/events"] = stream
        with trio.fail_after(5), pytest.raises(DaemonStreamEndedError):
            await session.prompt("x")
        assert client.counters.count(session.session_id) == 0


async def test_a_lost_outcome_is_asked_for(autojump_clock: Clock) -> None:
    """Issue 3, outcome polling: the stream cannot be had any more, but the daemon remembers how the prompt ended."""
    async with fake_daemon(wait_for_cancel) as daemon, client_of(daemon) as client:
        session = await DaemonSessionClient.create_or_attach(client)

        async def stream(exchange: Exchange) -> None:
            turn = daemon.sessions[session.session_id].turns[0]
            daemon.outcomes[turn.prompt_id] = {"state": "completed", "stopReason": "max_tokens"}
            await exchange.answer(400, {"error": "never"})

        daemon.overrides[f"GET /session/{session.session_id}/events"] = stream
        assert (await session.prompt("x")).stop_reason == "max_tokens"
        assert await client.prompt_outcome(session.session_id, "unknown") is None


@pytest.mark.parametrize("transport", REPLAYING)
async def test_a_prompt_survives_any_number_of_cuts(transport: str, autojump_clock: Clock) -> None:
    """CLI-026, CLI-027, client-sdk 7.7 test 7: cut after every event, in mid-turn; text complete, nothing twice."""

    async def talk(turn: Turn) -> str:
        for number in range(30):
            turn.say(f"w{number} ")
            await trio.sleep(0.05)
        return "end_turn"

    async with fake_daemon(talk) as daemon, client_of(daemon, transport) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        daemon.cut_after, daemon.cut_bytes = 2, 7
        text = []
        async with trio.open_nursery() as nursery, session.events() as events:
            outcome = []

            async def prompt() -> None:
                outcome.append(await session.prompt("go"))

            nursery.start_soon(prompt)
            async for event in events:
                text.append(event.text)
                if event.type == "turn_complete":
                    break
            await eventually(lambda: bool(outcome))
        assert "".join(text) == "go" + "".join(f"w{number} " for number in range(30))
        assert outcome[0].stop_reason == "end_turn"


async def test_an_evicted_terminal_is_found_in_the_history(autojump_clock: Clock) -> None:
    """CLI-025, CLI-027: the end of the turn was lost with the ring, but the loaded state has it."""
    async with fake_daemon() as daemon, client_of(daemon) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        fake = daemon.sessions[session.session_id]
        opened = []

        async def stream(exchange: Exchange) -> None:
            opened.append(exchange)
            if len(opened) == 1:
                await eventually(lambda: not fake.turns)
                await exchange.open_sse()
                data = {"reason": "ring_evicted", "lastDeliveredId": 0, "earliestAvailableId": 90}
                notice = json.dumps({"v": 1, "type": "state_resync_required", "data": data})
                await exchange.send(f"data: {notice}\n\n".encode())
            else:
                await exchange.open_sse()
            await exchange.wait_gone()

        daemon.overrides[f"GET /session/{session.session_id}/events"] = stream
        with trio.fail_after(5):
            assert (await session.prompt("x")).stop_reason == "end_turn"


@pytest.mark.parametrize("wrong", [-1, 1.5, "3", True])
async def test_cursors_are_whole_numbers(wrong: object, autojump_clock: Clock) -> None:
    """client-sdk section 3: anything else is a TypeError."""
    async with fake_daemon() as daemon, client_of(daemon) as client:
        session = attach(client, daemon.new_session())
        with pytest.raises(TypeError):
            attach(client, daemon.new_session(), cursor=wrong)  # type: ignore[arg-type]  # that is the point
        with pytest.raises(TypeError):
            session.events(cursor=wrong)  # type: ignore[arg-type]  # likewise
