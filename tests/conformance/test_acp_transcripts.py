"""The recorded exchanges of the shipped daemon, replayed against this server with equal meaning.

Each deviation is a named edit below, with what decides it. Transcripts 01, 07, 13 and 16 are REST's.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from tests.conformance.acp_replay import RecordedRunner, Replay, load
from tests.support.acp import Frame, Place, Talker, acp_place, prompt_params


async def replay(number: str, prepare: Any = None, **settings: Any) -> None:
    async with acp_place(RecordedRunner(), **settings) as place:
        run = Replay(place, number)
        if prepare is not None:
            prepare(run)
        with trio.fail_after(600):
            await run.run()


def session_closed(run: Replay, frames: list[Frame], session: str) -> list[Frame]:
    closed = {"kind": "session_closed", "data": {"sessionId": session, "reason": "client_close"}}
    last = max((frame.id for frame in frames if frame.id is not None), default=0)
    return [*frames, Frame(last + 1, {"jsonrpc": "2.0", "method": "_qwen/notify", "params": closed})]


def reply_after_replay(frames: list[Frame]) -> list[Frame]:
    """Section 13 #1: a deferred reply never comes before replay_complete."""
    replies = [frame for frame in frames if frame.kind.startswith("reply")]
    rest = [frame for frame in frames if not frame.kind.startswith("reply")]
    end = [frame.kind for frame in rest].index("replay_complete") + 1
    return [*rest[:end], *replies, *rest[end:]]


async def test_02_initialize_and_rejections(autojump_clock: MockClock) -> None:
    def prepare(run: Replay) -> None:
        run.bodies = {20}  # an HTML page for PUT; ours is JSON

    await replay("02", prepare)


async def test_03_new_and_prompt(autojump_clock: MockClock) -> None:
    def prepare(run: Replay) -> None:
        session = run.steps[3]["request"]["headers"]
        (name,) = [value for key, value in session if key == "Acp-Session-Id"]
        run.edit[4] = lambda frames: session_closed(run, frames, name)
        # session/list shows whatever sessions the recording machine had.
        run.edit[2] = lambda frames: [_without_sessions(frame) for frame in frames]

    await replay("03", prepare)


def _without_sessions(frame: Frame) -> Frame:
    if "sessions" not in frame.message.get("result", {}):
        return frame
    listed = frame.message["result"]["sessions"][:1]
    kept = [{key: value for key, value in each.items() if key not in ("isArchived",)} for each in listed]
    return Frame(frame.id, {**frame.message, "result": {"sessions": kept}})


async def test_04_resume_in_mid_turn(autojump_clock: MockClock) -> None:
    def prepare(run: Replay) -> None:
        run.pauses[6] = 1.85  # what was said meanwhile is what the stream replays

    await replay("04", prepare)


async def test_05_foreign_and_unknown(autojump_clock: MockClock) -> None:
    await replay("05")


async def test_06_cursors(autojump_clock: MockClock) -> None:
    async def prompt(run: Replay) -> None:
        (connection, session) = run.streams[1].key
        await run.client(connection).prompt(run.names[session], "say hello", id=3)
        await trio.sleep(0.05)

    def prepare(run: Replay) -> None:
        run.preludes[2] = prompt

    await replay("06", prepare)


async def test_08_queue_full(autojump_clock: MockClock) -> None:
    def prepare(run: Replay) -> None:
        # ACP-218 allows to free the slot of a removed prompt at once: the daemon's 503 is a 202 here.
        run.skip = {14}
        run.pauses[16] = 0.95
        # What becomes of prompts that wait while their session closes: cancelled here (test_methods.py), while the daemon
        # let its agent refuse them one by one. Compared up to there.
        run.edit[1] = _up_to_the_close
        run.bodies = {8, 13}
        run.open_ended = {1}

    await replay("08", prepare)


def _up_to_the_close(frames: list[Frame]) -> list[Frame]:
    end = [frame.message["params"]["data"].get("text") for frame in frames if frame.kind == "pending_prompt_added"]
    assert end[-1] == "after cancel"
    index = max(number for number, frame in enumerate(frames) if frame.kind == "pending_prompt_added")
    return frames[: index + 1]


async def test_09_permission(autojump_clock: MockClock) -> None:
    def prepare(run: Replay) -> None:
        # ACP-175's table: already resolved is 409, and the others are told; the daemon said 404 and told nobody.
        # test_permissions.py shows ours.
        run.skip = {11}
        run.edit[12] = lambda frames: [frame for frame in frames if frame.kind != "reply:6"]

    await replay("09", prepare)


async def test_10_grace(autojump_clock: MockClock) -> None:
    def prepare(run: Replay) -> None:
        run.pauses = {5: 12.0, 9: 5.0, 10: 6.5}
        # Step 2, a REST reader, is what keeps the session when its owner's time is over.
        run.preludes[4] = _read

    await replay("10", prepare)


async def _read(run: Replay) -> None:
    (session,) = run.place.harbour.sessions
    session.subscribe()


async def test_11_pre_attach(autojump_clock: MockClock) -> None:
    def prepare(run: Replay) -> None:
        run.edit[7] = reply_after_replay

    await replay("11", prepare)


async def test_12_websocket(autojump_clock: MockClock) -> None:
    """T12. Step 5 (another path) is answered with a refusal instead of a bare end of the socket."""
    for step in load("12"):
        token = "transcript-token" if "token" in step["note"] or "bearer" in step["note"] else None
        if "not a bearer carrier" in step["note"]:
            token = None
        async with acp_place(RecordedRunner(), token=token) as place:
            await _upgrade(place, step)


async def _upgrade(place: Place, step: dict[str, Any]) -> None:
    names = {"origin", "authorization"}
    given = [(name, value) for name, value in step["request"]["headers"] if name.lower() in names]
    headers = [(name, value.replace(":43600", ":4170")) for name, value in given]
    offered = [value for name, value in step["request"]["headers"] if name.lower() == "sec-websocket-protocol"]
    subprotocols = [each.strip() for each in offered[0].split(",")] if offered else []
    path = step["request"]["line"].split(" ")[1]
    async with place.driver.websocket(path, headers=headers, subprotocols=subprotocols) as socket:
        head = await socket.answer()
        line = step["response"]["status_line"]
        if not line.startswith("HTTP"):
            assert head.status in (403, 404)
            return
        assert head.status == int(line.split(" ")[1]), step["note"]
        selected = {name.lower(): value for name, value in step["response"]["headers"]}.get("sec-websocket-protocol")
        assert head.headers.get("sec-websocket-protocol") == selected
        await _converse(place, socket, step["response"].get("messages") or step.get("messages") or [])


async def _converse(place: Place, socket: Any, messages: list[dict[str, Any]]) -> None:
    run = Replay(place, "12")
    for message in messages:
        if message["from"] == "client" and "text" in message:
            socket.send_text(run.ours(message["text"]).replace("/home/project", "/tmp"))
        elif "close_code" in message and message["from"] == "server":
            assert await Talker(socket).close_code() == (message["close_code"], message["close_reason"])
        elif "text" in message:
            recorded = Frame(None, msgspec.json.decode(message["text"]))
            if _is_product(recorded):
                continue
            ours = msgspec.json.decode(await socket.receive_text())
            while _is_product(Frame(None, ours)):
                ours = msgspec.json.decode(await socket.receive_text())
            run.same(recorded.message, ours, message["text"][:60])


def _is_product(frame: Frame) -> bool:
    from tests.conformance.acp_replay import _is_product_frame

    return "jsonrpc" in frame.message and "id" not in frame.message and _is_product_frame(frame)


async def test_14_ring_eviction(autojump_clock: MockClock) -> None:
    async def first_turn(run: Replay) -> None:
        recorded = {name.lower(): value for name, value in run.steps[0]["request"]["headers"]}
        await run._meet(recorded)
        client, session = run.client(recorded["acp-connection-id"]), run.names[recorded["acp-session-id"]]
        async with client.listen(session) as feed:
            await client.prompt(session, "SLOW60x10", id=3)
            await feed.until_kind("turn_complete")
        await trio.sleep(0.05)

    def prepare(run: Replay) -> None:
        run.preludes[1] = first_turn
        run.preludes[4] = suggestion
        run.edit[4] = reply_after_replay

    async def suggestion(run: Replay) -> None:
        # One of the forty events of the ring is the recorded product's.
        await trio.sleep(2)
        (session,) = run.place.harbour.sessions
        session.publish("followup_suggestion", {"sessionId": session.id})

    await replay("14", prepare, event_ring_size=40)


async def test_15_load_and_resume(autojump_clock: MockClock) -> None:
    async def first_turn(run: Replay) -> None:
        recorded = {name.lower(): value for name, value in run.steps[1]["request"]["headers"]}
        await run._meet(recorded)
        client, session = run.client(recorded["acp-connection-id"]), run.names[recorded["acp-session-id"]]
        async with client.listen(session) as feed:
            await client.prompt(session, "say hello", id=3)
            await feed.until_kind("turn_complete")
        await trio.sleep(0.05)

    def prepare(run: Replay) -> None:
        run.preludes[2] = first_turn
        # What was published besides content before the close is history here; the daemon's transcript lacks it.
        run.extra_kinds = {5: {"turn_complete", "session_closed"}}
        run.edit[5] = _without_storage_marks
        # ACP-195: cancel with nothing running publishes nothing. Section 13 #3: the second prompt waits.
        run.edit[8] = _in_order
        run.pauses = {16: 0.1}

    await replay("15", prepare)


def _without_storage_marks(frames: list[Frame]) -> list[Frame]:
    """The daemon marks what it reads from its files; ours is the same event as before the close."""
    stripped = []
    for frame in frames:
        params = dict(frame.message["params"])
        if "update" in params:
            params["update"] = {
                key: value for key, value in params["update"].items() if key not in ("_meta", "timestamp")
            }
        stripped.append(Frame(frame.id, {**frame.message, "params": params}))
    return stripped


def _in_order(frames: list[Frame]) -> list[Frame]:
    """Up to the cancel: from there on the recording shows the second prompt ending the first."""
    end = [frame.kind for frame in frames].index("reply:11")
    return [frame for frame in frames[: end + 1] if frame.kind != "prompt_cancelled"]


async def test_15_two_prompts_wait_in_line(autojump_clock: MockClock) -> None:
    """Section 13 #3 instead of steps 16 and 17."""
    async with acp_place(RecordedRunner()) as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen(session_id) as feed:
            await client.call("session/prompt", prompt_params(session_id, "SLOW3x100"), id=20)
            await client.call("session/prompt", prompt_params(session_id, "say hello"), id=21)
            frames = await feed.until_kind("reply:21")
        replies = [frame.message for frame in frames if frame.kind.startswith("reply")]
        assert [(each["id"], each["result"]["stopReason"]) for each in replies] == [(20, "end_turn"), (21, "end_turn")]


@pytest.mark.parametrize("number", ["02", "03", "04", "05", "06", "08", "09", "10", "11", "12", "14", "15"])
def test_every_transcript_is_there(number: str) -> None:
    assert load(number)
