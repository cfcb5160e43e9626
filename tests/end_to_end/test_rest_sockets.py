"""REST on real sockets with a real agent process: cuts, resets, stuck readers, many at once."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import AsyncIterator

import pytest
import trio

from tests.end_to_end.rest_place import Remote, Served, rest_server
from tests.server.rest.api import Frame
from tests.support.http import open_raw
from tests.support.scripted_agent import steps
from tests.support.serving import wait_until


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with rest_server() as place:
        yield place


def said(frames: list[Frame]) -> str:
    """The agent's text in these frames."""
    updates = [each.data["update"] for each in frames if each.type == "session_update"]
    return "".join(each["content"]["text"] for each in updates if each["sessionUpdate"] == "agent_message_chunk")


def ids(frames: list[Frame]) -> list[int]:
    return [each.id for each in frames if each.id is not None]


async def test_plain_resume(served: Served) -> None:
    """C-001: the exact missing suffix, each frame once, each with its own ``id:`` line."""
    session_id = await served.create()
    await served.run(session_id, steps(["say", "{n} ", 8]))
    async with served.events(session_id, 0) as stream:
        first = await stream.take(4)
    async with served.events(session_id, ids(first)[-1]) as stream:
        frames = await stream.until("replay_complete")
        assert ids(frames) == [5, 6, 7, 8, 9, 10]
        assert frames[-1].names == ["event", "data"]
        assert (frames[-1].data["replayedCount"], frames[-1].data["lastReplayedEventId"]) == (6, 10)
        await served.submit(session_id, "emoji")
        assert (await stream.next()).id == 11


async def test_frames_written_to_a_dead_socket_are_replayed(served: Served) -> None:
    """C-003."""
    session_id = await served.create()
    async with served.events(session_id) as stream:
        prompt_id = await served.submit(session_id, steps(["say", "a", 2], ["pause", 300], ["say", "b", 3], ["hold"]))
        assert ids(await stream.take(3)) == [1, 2, 3]
        await trio.sleep(0.6)
        stream.reset()
    await served.post(f"/session/{session_id}/cancel")
    await served.outcome(session_id, prompt_id)
    frames = await served.replay(session_id, 3)
    assert ids(frames) == list(range(4, 9))


async def test_random_drops_under_load(served: Served) -> None:
    """C-004: 2000 updates at full speed, 50 cuts; every id once, the text whole."""
    dice = random.Random(4)
    session_id = await served.create()
    prompt_id = await served.submit(session_id, steps(["say", "{n} ", 2000]))
    seen: list[Frame] = []
    cuts = 0
    while not seen or seen[-1].type != "turn_complete":
        async with served.events(session_id, seen[-1].id if seen else 0) as stream:
            wanted = dice.randrange(1, 60) if cuts < 50 else 10_000
            for _ in range(wanted):
                frame = await stream.next()
                if frame.id is not None:
                    seen.append(frame)
                if frame.type == "turn_complete":
                    break
            if dice.random() < 0.5:
                stream.reset()
        cuts += 1
    assert cuts >= 50
    assert ids(seen) == list(range(1, len(seen) + 1))
    assert said(seen) == "".join(f"{number} " for number in itertools.islice(_count_of(said(seen)), 2000))
    assert (await served.outcome(session_id, prompt_id))["state"] == "completed"


def _count_of(text: str) -> itertools.count[int]:
    """The agent counts from whatever it counts from."""
    return itertools.count(int(text.split(" ")[0]))


async def test_many_reconnects_leave_nothing_open(served: Served) -> None:
    """C-013, C-030: 100 readers of one event each, then 200 that reset before they read a byte."""
    session_id = await served.create()
    await served.run(session_id, steps(["say", "{n} ", 98]))
    await served.get("/health")
    before = len(os.listdir("/proc/self/fd"))
    cursor = 0
    for _ in range(100):
        async with served.events(session_id, cursor) as stream:
            cursor = (await stream.next()).id or -1
    assert cursor == 100
    for _ in range(200):
        async with open_raw(served.port) as connection:
            await connection.request("GET", f"/session/{session_id}/events")
    session = served.harbour.find(session_id)
    await wait_until(lambda: session.ring.subscribers == 0)
    await wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before + 5, within=10)
    async with trio.open_nursery() as nursery:
        for _ in range(64):
            nursery.start_soon(_reads_one, served, session_id)


async def _reads_one(served: Remote, session_id: str) -> None:
    async with served.events(session_id, 99) as stream:
        assert (await stream.next()).id == 100


async def test_losing_the_post_after_202_changes_nothing(served: Served, tmp_path: object) -> None:
    """C-018."""
    session_id = await served.create()
    async with served.events(session_id) as stream:
        async with open_raw(served.port) as connection:
            body = b'{"prompt":[{"type":"text","text":"slow=50"}]}'
            await connection.request("POST", f"/session/{session_id}/prompt", body)
            await connection.until(b" 202")
        frames = await stream.until("turn_complete", "turn_error")
    assert frames[-1].data["stopReason"] == "end_turn"
    echoes = [each for each in frames if each.type == "session_update" and "_meta" in each.data["update"]]
    assert len(echoes) == 1


async def test_parallel_admission_over_fifty_connections(served: Served) -> None:
    """C-022."""
    session_id = await served.create()
    for _ in range(3):
        statuses: list[int] = []

        async def post(statuses: list[int] = statuses) -> None:
            statuses.append((await served.prompt(session_id, "hold")).status)

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(post)
        assert (statuses.count(202), statuses.count(503)) == (5, 45)
        session = served.harbour.find(session_id)
        while session.prompts.count:
            await served.post(f"/session/{session_id}/cancel")
            await trio.sleep(0.02)


async def test_eviction_closes_a_blocked_socket(served: Served) -> None:
    """C-026, C-027: the server closes it; a healthy reader gets everything; the cursor works, the turn goes on."""
    session_id = await served.create()
    session = served.harbour.find(session_id)
    async with served.events(session_id, receive_buffer=4096) as stuck, served.events(session_id) as healthy:
        await served.submit(session_id, steps(["say", "x" * 8192, 1500, 1], ["hold"]))
        with trio.fail_after(30):
            assert ids(await healthy.take(1501)) == list(range(1, 1502))
            # What the kernel holds is all the stuck reader could still get; then its socket is closed for it.
            await wait_until(lambda: session.ring.subscribers == 1, within=5)
            assert await stuck.connection.wait_end(5)
    assert session.active is not None
    assert ids(await served.replay(session_id, 1400))[0] == 1401


async def test_writer_idle_timeout_on_a_blocked_socket() -> None:
    """REST-087: closed for a reader that takes nothing, long before it would be evicted; other requests keep their time."""
    async with rest_server(writer_idle_timeout_ms=300, max_queued_events=1_000_000, max_queued_bytes=2**30) as served:
        session_id = await served.create()
        session = served.harbour.find(session_id)
        async with served.events(session_id, receive_buffer=4096) as stuck:
            for _ in range(1200):
                session.publish("x", {"text": "x" * 8192})
            begun = trio.current_time()
            await wait_until(lambda: session.ring.subscribers == 0, within=5)
            assert trio.current_time() - begun < 4
            await stuck.connection.wait_end(5)
        assert "writer_idle_timeout" in (await served.get("/capabilities"))["features"]


async def test_proxies_see_a_stream(served: Served) -> None:
    """C-031: headers at once, nothing compressed or sized; a comment within the interval; an event within 200 ms."""
    session_id = await served.create()
    with trio.fail_after(1):
        async with served.events(session_id, Accept_Encoding="gzip, br") as stream:
            assert stream.headers["content-type"] == "text/event-stream"
            assert "no-cache" in stream.headers["cache-control"]
            assert stream.headers["x-accel-buffering"] == "no"
            assert "content-length" not in stream.headers
            assert "content-encoding" not in stream.headers
            begun = trio.current_time()
            served.harbour.find(session_id).publish("x", {})
            await stream.next()
            assert trio.current_time() - begun < 0.2


async def test_heartbeats_on_the_wire() -> None:
    """REST-084, C-031: with a short interval."""
    async with rest_server(heartbeat_ms=50) as served:
        session_id = await served.create()
        async with served.events(session_id) as stream:
            raw = await stream.connection.until(b": heartbeat\n\n")
            assert b"retry: 3000\n\n" in raw


async def test_forged_frames(served: Served) -> None:
    """C-044, from a real agent's pipe."""
    session_id = await served.create()
    text = "x\r\nevent: hack\rid: 999\n\ndata: {}\n\n"
    await served.run(session_id, steps(["say", text]))
    frames = await served.replay(session_id)
    assert said(frames) == text
    assert ids(frames) == [1, 2, 3]


async def test_large_messages(served: Served) -> None:
    """C-046: agent lines around 64 KiB and of 1 MiB, a prompt of 1 MiB; in order, unchanged."""
    session_id = await served.create()
    sizes = [65_535, 65_536, 65_537, 1_048_576]
    await served.run(session_id, steps(*[["big", size] for size in sizes], ["say", "small"]))
    frames = await served.replay(session_id)
    texts = [said([each]) for each in frames[1:6]]
    assert [len(text) for text in texts[:4]] == sorted(len(text) for text in texts[:4])
    assert all(abs(len(text) - size) < 400 for text, size in zip(texts, sizes, strict=False))
    assert texts[4] == "small"
    long = "echo " + "y" * 2**20
    await served.run(session_id, long)
    again = await served.replay(session_id, frames[-2].id or 0)
    assert again[0].data["update"]["content"]["text"] == long
    assert said(again).count("y") == 2**20


async def test_lone_surrogates(served: Served) -> None:
    """C-048: valid UTF-8, both updates and the end; a proper pair is one character."""
    session_id = await served.create()
    line = '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"SESSION","update":{"sessionUpdate":'
    line += '"agent_message_chunk","content":{"type":"text","text":"TEXT"}}}}\n'
    agent_id = served.harbour.find(session_id).agent_session_id or ""
    raw = [line.replace("SESSION", agent_id).replace("TEXT", text) for text in ("\\ud83d", "\\ud83d\\ude42")]
    await served.run(session_id, steps(*[["raw", each] for each in raw], ["say", "ok"]))
    frames = await served.replay(session_id)
    texts = [said([each]) for each in frames[1:4]]
    assert texts[1:] == ["\U0001f642", "ok"]
    assert frames[-2].type == "turn_complete"


async def test_cancel_is_not_queued_behind_the_turn(served: Served) -> None:
    """C-060, C-061: within 500 ms; updates after the cancel come before the outcome."""
    session_id = await served.create()
    turn = steps(["after_cancel", [["say", "late {n}", 3]]], ["say", "w", 300, 100])
    async with served.events(session_id) as stream:
        await served.submit(session_id, turn)
        await stream.take(3)
        begun = trio.current_time()
        assert (await served.post(f"/session/{session_id}/cancel")).status == 204
        frames = await stream.until("turn_complete")
        assert trio.current_time() - begun < 1.0
    kinds = [each.type for each in frames]
    assert kinds[-4:] == ["session_update"] * 3 + ["turn_complete"]
    assert frames[-1].data["stopReason"] == "cancelled"


async def test_a_dripping_request(served: Served) -> None:
    """Issue: a request one byte at a time is an ordinary request; others do not wait for it."""
    session_id = await served.create()
    body = b'{"prompt":[{"type":"text","text":"emoji"}]}'
    async with open_raw(served.port) as connection:
        head = connection.head("POST", f"/session/{session_id}/prompt", len(body))
        for byte in head + body:
            await connection.send(bytes([byte]))
        with trio.fail_after(1):
            await served.get("/health")
        reply = await connection.reply()
    assert reply.status == 202


async def test_a_chunked_body_over_the_limit(served: Served) -> None:
    """REST-001: refused at the first byte too many."""
    async with open_raw(served.port) as connection:
        await connection.request("POST", "/session", Transfer_Encoding="chunked", Content_Type="application/json")
        piece = b"x" * 2**16
        chunk = b"%x\r\n%b\r\n" % (len(piece), piece)
        try:
            for _ in range(200):
                await connection.send(chunk)
        except trio.BrokenResourceError:
            pass  # refused while we were sending: what matters is the answer
        reply = await connection.reply()
    assert (reply.status, reply.json()) == (413, {"error": "Request body too large (max 10 MB)"})
    assert served.harbour.sessions == []


async def test_identifiers_cannot_be_guessed(served: Served) -> None:
    """C-074: 200 clients and 40 sessions; unique, and at least 120 random bits in form."""
    found: list[str] = []
    for _ in range(30):
        reply = (await served.post("/session", {"sessionScope": "thread"})).json()
        found += [reply["sessionId"], reply["clientId"].removeprefix("client_"), reply["eventEpoch"]]
    session_id = found[0]
    for _ in range(100):
        found.append((await served.post(f"/session/{session_id}/resume")).json()["clientId"].removeprefix("client_"))
    assert len(set(found)) == len(found)
    for each in found:
        assert len(each.replace("-", "")) == 32
        assert each[14] == "4"
    prefixes = {each[:8] for each in found}
    assert len(prefixes) == len(found)
