"""Prompts: validation, admission, order, cancel, outcome, idempotency (rest.md section 5)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.server.rest.api import Api, block
from tests.server.rest.conftest import StartApi
from tests.server.rest.runner import RestRunner
from tests.support.engine import quiet, submit

UNKNOWN = "00000000-0000-4000-8000-00000000dead"
EMPTY = {"error": "`prompt` is required and must be a non-empty array of content blocks"}
NOT_OBJECTS = {"error": "each `prompt` element must be an object (content block)"}
BAD_DEADLINE = {
    "error": "`deadlineMs` must be a positive integer (milliseconds)",
    "code": "invalid_deadline_ms",
}


BAD_DEADLINES: list[Any] = [0, -1, 1.5, "5", True, []]


@pytest.fixture
async def session_id(api: Api) -> str:
    return str((await api.create())["sessionId"])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, EMPTY),
        ({"prompt": []}, EMPTY),
        ({"prompt": "x"}, EMPTY),
        ({"prompt": {}}, EMPTY),
        (["prompt"], EMPTY),
        ({"prompt": ["x"]}, NOT_OBJECTS),
        ({"prompt": [{"type": "text", "text": "x"}, None]}, NOT_OBJECTS),
        *(({**block("x"), "deadlineMs": value}, BAD_DEADLINE) for value in BAD_DEADLINES),
    ],
)
async def test_validation_precedes_admission(api: Api, session_id: str, body: object, expected: dict[str, Any]) -> None:
    """REST-060: 400 although the queue is full; nothing reaches the agent."""
    for _ in range(5):
        await api.submit(session_id, "hold")
    reply = await api.post(f"/session/{session_id}/prompt", body)
    assert (reply.status, reply.json()) == (400, expected)


async def test_unknown_session_and_client(api: Api, session_id: str) -> None:
    """REST-060, REST-004: the bodies of T07."""
    reply = await api.prompt(UNKNOWN, "x")
    assert (reply.status, reply.json()["code"]) == (404, "session_not_found")
    reply = await api.prompt(session_id, "x", X_Qwen_Client_Id="stranger")
    assert reply.status == 400
    assert reply.json() == {
        "error": f'Client id "stranger" is not registered for session {session_id}',
        "code": "invalid_client_id",
        "sessionId": session_id,
        "clientId": "stranger",
    }


@pytest.mark.parametrize("client_id", ["bad id!", "x" * 129, "", "a/b"])
async def test_malformed_client_id(api: Api, session_id: str, client_id: str) -> None:
    """REST-004, T16."""
    reply = await api.prompt(session_id, "x", X_Qwen_Client_Id=client_id)
    assert reply.status == 400
    assert reply.json() == {
        "error": "`X-Qwen-Client-Id` must be a non-empty token of 128 characters or fewer",
        "code": "invalid_client_id",
    }


async def test_accepted(api: Api, session_id: str) -> None:
    """REST-062: the head before the prompt, so that its terminal event cannot be missed. REST-063: never the blocking form."""
    await api.run(session_id, "one")
    reply = await api.prompt(session_id, "two")
    body = reply.json()
    assert reply.status == 202
    assert set(body) == {"promptId", "lastEventId", "eventEpoch"}
    assert (body["lastEventId"], body["eventEpoch"]) == (3, api.session(session_id).ring.epoch)
    frames = await api.replay(session_id, body["lastEventId"])
    assert frames[0].id == 4
    async with api.events(session_id, Last_Event_ID="3") as stream:
        ends = await stream.until("turn_complete")
    assert ends[-1].data == {"sessionId": session_id, "stopReason": "end_turn", "promptId": body["promptId"]}


async def test_queue_full(api: Api, session_id: str, runner: RestRunner) -> None:
    """REST-065, C-021: status, header and body exactly; the agent never sees it; one settled makes room for one."""
    for _ in range(5):
        await api.submit(session_id, "hold")
    reply = await api.prompt(session_id, "one too many")
    assert (reply.status, reply.headers["retry-after"]) == (503, "5")
    assert reply.json() == {
        "error": f'Prompt queue full for session "{session_id}" (5/5 pending)',
        "code": "prompt_queue_full",
        "sessionId": session_id,
        "limit": 5,
        "pendingCount": 5,
    }
    await api.post(f"/session/{session_id}/cancel")
    await wait_all_tasks_blocked()
    assert (await api.prompt(session_id, "hold")).status == 202
    assert (await api.prompt(session_id, "hold")).status == 503
    assert all(each.request.text() == "hold" for each in runner.started)


async def test_nothing_is_rated(api: Api, session_id: str) -> None:
    """REST-110, ACP-048: there is no rate limit unless somebody puts one in front."""
    reads = [(await api.get("/capabilities")).status for _ in range(150)]
    mutations = [(await api.post(f"/session/{session_id}/heartbeat")).status for _ in range(50)]
    prompts = [(await api.run(session_id, "again")) is not None for _ in range(15)]
    assert {*reads, *mutations} == {200}
    assert all(prompts)


async def test_queue_without_a_limit(start: StartApi) -> None:
    """REST-012, ACP-211."""
    async with start(max_pending_prompts_per_session=0) as api:
        session_id = (await api.create())["sessionId"]
        for _ in range(40):
            await api.submit(session_id, "hold")


async def test_parallel_admission_is_exact(api: Api, session_id: str) -> None:
    """C-022."""
    for _ in range(5):
        statuses: list[int] = []

        async def post(statuses: list[int] = statuses) -> None:
            statuses.append((await api.prompt(session_id, "hold")).status)

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(post)
        assert (statuses.count(202), statuses.count(503)) == (5, 45)
        while api.session(session_id).cancel_prompt():
            await wait_all_tasks_blocked()


async def _leave_before_the_202(api: Api, session_id: str) -> None:
    body = msgspec.json.encode(block("fine"))
    headers = [("content-length", str(len(body)))]
    async with api.driver.stream("POST", f"/session/{session_id}/prompt", body=body, headers=headers, window=0):
        await wait_all_tasks_blocked()
    await trio.sleep(1)


async def test_slots_come_back_on_every_ending(start: StartApi, runner: RestRunner, autojump_clock: MockClock) -> None:
    """C-023."""
    async with start(max_pending_prompts_per_session=2) as api:
        session_id = (await api.create())["sessionId"]
        for number in range(20):
            match number % 5:
                case 0:
                    await api.run(session_id, "fine")
                case 1:
                    await api.run(session_id, "fail")
                case 2:
                    await api.submit(session_id, "hold")
                    await wait_all_tasks_blocked()
                    await api.post(f"/session/{session_id}/cancel")
                case 3:
                    await api.submit(session_id, "hold")
                    waiting = await api.submit(session_id, "hold")
                    await wait_all_tasks_blocked()
                    await api.delete(f"/session/{session_id}/pending-prompts/{waiting}")
                    await api.post(f"/session/{session_id}/cancel")
                case 4:
                    await _leave_before_the_202(api, session_id)
            await wait_all_tasks_blocked()
        replies = [await api.prompt(session_id, "hold") for _ in range(3)]
        assert [each.status for each in replies] == [202, 202, 503]
        assert replies[2].json()["pendingCount"] == 2


async def test_caller_gone_before_the_body_is_complete(api: Api, session_id: str, runner: RestRunner) -> None:
    """REST-064: never admitted."""
    path = f"/session/{session_id}/prompt"
    async with api.driver.stream("POST", path, headers=[("content-length", "100")]) as stream:
        stream.push({"type": "http.request", "body": b"", "more_body": True})
    assert runner.started == []
    assert api.session(session_id).prompts.count == 0


async def test_caller_gone_after_202(api: Api, session_id: str, autojump_clock: MockClock) -> None:
    """REST-064, C-018."""
    prompt = b'{"prompt":[{"type":"text","text":"many 3"}]}'
    headers = [("content-length", str(len(prompt)))]
    async with api.driver.stream("POST", f"/session/{session_id}/prompt", body=prompt, headers=headers) as stream:
        assert (await stream.head()).status == 202
    await trio.sleep(1)
    frames = await api.replay(session_id)
    assert [each.type for each in frames] == [*["session_update"] * 4, "turn_complete", "replay_complete"]
    assert frames[-2].data["stopReason"] == "end_turn"


# The life of a prompt


async def test_order_of_a_turn(api: Api, session_id: str) -> None:
    """REST-070: echo, updates, ``turn_complete``; the author is on every frame."""
    client_id = (await api.post(f"/session/{session_id}/resume")).json()["clientId"]
    prompt_id = await api.submit(session_id, "many 2", X_Qwen_Client_Id=client_id)
    await api.outcome(session_id, prompt_id)
    frames = await api.replay(session_id)
    echo = frames[0].data["update"]
    assert echo["sessionUpdate"] == "user_message_chunk"
    assert echo["_meta"]["source"] == "bridge-echo"
    assert [each.type for each in frames[1:4]] == ["session_update", "session_update", "turn_complete"]
    for each in frames[:-1]:
        assert (each.value["promptId"], each.value["originatorClientId"]) == (prompt_id, client_id)


async def test_failing_turn(api: Api, session_id: str) -> None:
    """REST-070: ``prompt_cancelled`` with ``forward_failed``, then ``turn_error``; the queue goes on (ACP-213)."""
    failing = await api.submit(session_id, "fail")
    after = await api.submit(session_id, "fine")
    assert (await api.outcome(session_id, after))["state"] == "completed"
    frames = [each for each in await api.replay(session_id) if each.value.get("promptId") == failing]
    assert [each.type for each in frames] == ["session_update", "prompt_cancelled", "turn_error"]
    assert frames[1].data == {"sessionId": session_id, "reason": "forward_failed"}
    assert frames[2].data == {
        "sessionId": session_id,
        "message": "400 upstream failure",
        "code": "-32603",
        "promptId": failing,
    }


async def test_events_of_waiting_prompts(api: Api, session_id: str, autojump_clock: MockClock) -> None:
    """REST-067."""
    first = await api.submit(session_id, "tick 1")
    second = await api.submit(session_id, "many 1")
    await api.outcome(session_id, second)
    await wait_all_tasks_blocked()
    frames = (await api.replay(session_id))[:-1]
    about = {each: [frame.type for frame in frames if frame.value.get("promptId") == each] for each in (first, second)}
    assert about[first] == ["session_update", "session_update", "turn_complete"]
    assert about[second] == [
        "pending_prompt_added",
        "pending_prompt_started",
        "session_update",
        "session_update",
        "turn_complete",
        "pending_prompt_completed",
    ]
    assert frames[-1].data == {"sessionId": session_id, "promptId": second, "state": "completed"}
    added = next(each for each in frames if each.type == "pending_prompt_added")
    assert set(added.data) == {"sessionId", "promptId", "text", "queuedAt"}


async def test_pending_prompts(api: Api, session_id: str) -> None:
    """REST-068, T08."""
    client_id = (await api.post(f"/session/{session_id}/resume")).json()["clientId"]
    running = await api.submit(session_id, "hold")
    picture = {"type": "image", "data": "AA==", "mimeType": "image/png"}
    reply = await api.post(f"/session/{session_id}/prompt", {"prompt": [picture]}, X_Qwen_Client_Id=client_id)
    await wait_all_tasks_blocked()
    listed = (await api.get(f"/session/{session_id}/pending-prompts")).json()["pendingPrompts"]
    assert listed[0] == {
        "promptId": running,
        "text": "hold",
        "queuedAt": listed[0]["queuedAt"],
        "state": "running",
    }
    assert listed[1]["promptId"] == reply.json()["promptId"]
    assert (listed[1]["state"], listed[1]["content"], listed[1]["originatorClientId"]) == (
        "queued",
        [picture],
        client_id,
    )


async def test_removal_of_a_waiting_prompt(api: Api, session_id: str) -> None:
    """REST-068, ACP-218: it is settled at once and its slot is free."""
    ids = [await api.submit(session_id, "hold") for _ in range(5)]
    await wait_all_tasks_blocked()
    path = f"/session/{session_id}/pending-prompts"
    reply = await api.delete(f"{path}/{ids[4]}")
    assert (reply.status, reply.json()) == (200, {"removed": True})
    frames = [each for each in await api.replay(session_id) if each.value.get("promptId") == ids[4]]
    assert [(each.type, each.data.get("state") or each.data.get("stopReason")) for each in frames[1:]] == [
        ("pending_prompt_completed", "removed"),
        ("turn_complete", "cancelled"),
    ]
    assert (await api.prompt(session_id, "hold")).status == 202
    for other in (ids[4], ids[0], "never seen"):
        reply = await api.delete(f"{path}/{other}")
        assert (reply.status, reply.json()) == (200, {"removed": False})
    assert (await api.delete(f"/session/{UNKNOWN}/pending-prompts/{ids[0]}")).status == 404


# Cancel


async def test_cancel_of_the_running_prompt(api: Api, session_id: str) -> None:
    """REST-069, C-060: ``prompt_cancelled``, then the outcome; the queue goes on."""
    running = await api.submit(session_id, "hold")
    waiting = await api.submit(session_id, "many 1")
    await wait_all_tasks_blocked()
    reply = await api.post(f"/session/{session_id}/cancel")
    assert (reply.status, reply.body) == (204, b"")
    assert (await api.outcome(session_id, waiting))["state"] == "completed"
    outcome = await api.outcome(session_id, running)
    assert outcome == {"promptId": running, "state": "cancelled", "stopReason": "cancelled"}
    frames = [each for each in await api.replay(session_id) if each.value.get("promptId") == running]
    assert [each.type for each in frames] == ["session_update", "prompt_cancelled", "turn_complete"]
    assert frames[1].data == {"sessionId": session_id}
    assert frames[2].data["stopReason"] == "cancelled"
    assert set(frames[2].data["promptCancelled"]) == {"cancelledAt", "elapsedMs"}


async def test_cancel_with_nothing_running(api: Api, session_id: str) -> None:
    """REST-069, C-057: nothing happens, and nothing is remembered for the next prompt."""
    assert (await api.post(f"/session/{session_id}/cancel")).status == 204
    assert (await api.run(session_id, "fine"))["state"] == "completed"
    assert (await api.post(f"/session/{UNKNOWN}/cancel")).status == 404


async def test_cancel_of_one_prompt_and_no_other(api: Api, session_id: str) -> None:
    """C-057: a cancel aimed at a prompt that is over never hits the next."""
    for _ in range(20):
        first = await api.submit(session_id, "many 1")
        second = await api.submit(session_id, "many 1")
        await api.outcome(session_id, first)
        assert (await api.post(f"/session/{session_id}/cancel", {"promptId": first})).status == 204
        assert (await api.outcome(session_id, second))["state"] == "completed"
    running = await api.submit(session_id, "hold")
    waiting = await api.submit(session_id, "hold")
    await wait_all_tasks_blocked()
    await api.post(f"/session/{session_id}/cancel", {"promptId": waiting})
    assert (await api.outcome(session_id, waiting))["state"] == "cancelled"
    assert (await api.get(f"/session/{session_id}/prompts/{running}")).json()["state"] == "running"
    reply = await api.post(f"/session/{session_id}/cancel", {"promptId": "never seen"})
    assert (reply.status, reply.json()["code"]) == (404, "prompt_not_found")


@pytest.mark.parametrize("aimed", [5, True, [], {}], ids=str)
async def test_a_cancel_aimed_at_no_id_ends_nothing(api: Api, session_id: str, aimed: object) -> None:
    """C-057: what was to end one prompt does not end another because its id is of the wrong type."""
    running = await api.submit(session_id, "hold")
    await wait_all_tasks_blocked()
    reply = await api.post(f"/session/{session_id}/cancel", {"promptId": aimed})
    assert (reply.status, reply.json()) == (400, {"error": "`promptId` must be a string when provided"})
    assert (await api.get(f"/session/{session_id}/prompts/{running}")).json()["state"] == "running"


async def test_updates_after_a_cancel_come_before_the_outcome(api: Api, session_id: str) -> None:
    """C-061."""
    prompt_id = await api.submit(session_id, "late")
    await wait_all_tasks_blocked()
    await api.post(f"/session/{session_id}/cancel")
    await api.outcome(session_id, prompt_id)
    kinds = [each.type for each in await api.replay(session_id)]
    assert kinds[1:] == ["prompt_cancelled", *["session_update"] * 3, "turn_complete", "replay_complete"]


# Deadlines


async def test_deadline_is_ignored_without_a_configured_one(
    api: Api, session_id: str, autojump_clock: MockClock
) -> None:
    """REST-061."""
    reply = await api.post(f"/session/{session_id}/prompt", {**block("tick 20"), "deadlineMs": 500})
    assert (await api.outcome(session_id, reply.json()["promptId"]))["state"] == "completed"


@pytest.mark.parametrize("digits", [20, 400, 4000])
async def test_a_deadline_no_float_can_hold(start: StartApi, autojump_clock: MockClock, digits: int) -> None:
    """REST-060, REST-061: a positive integer, and further off than the configured deadline."""
    async with start(prompt_deadline_ms=2000) as api:
        session_id = (await api.create())["sessionId"]
        raw = b'{"prompt":[{"type":"text","text":"hold"}],"deadlineMs":' + b"9" * digits + b"}"
        reply = await api.post(f"/session/{session_id}/prompt", raw)
        assert reply.status == 202
        assert (await api.outcome(session_id, reply.json()["promptId"]))["state"] == "failed"


async def test_deadline(start: StartApi, autojump_clock: MockClock) -> None:
    """REST-061: shortens the configured one, never lengthens it; ``turn_error``; the slot comes back."""
    async with start(prompt_deadline_ms=2000, max_pending_prompts_per_session=1) as api:
        session_id = (await api.create())["sessionId"]
        for asked, took in ((500, 0.5), (50_000, 2.0)):
            begun = trio.current_time()
            reply = await api.post(f"/session/{session_id}/prompt", {**block("hold"), "deadlineMs": asked})
            outcome = await api.outcome(session_id, reply.json()["promptId"])
            assert outcome["state"] == "failed"
            assert outcome["error"]["code"] == "prompt_deadline_exceeded"
            assert trio.current_time() - begun == pytest.approx(took, abs=0.1)
        last = (await api.replay(session_id))[-2]
        assert (last.type, last.data["code"], last.data["errorKind"]) == (
            "turn_error",
            "prompt_deadline_exceeded",
            "prompt_deadline_exceeded",
        )


# Outcomes


async def test_outcome_polling(api: Api, session_id: str) -> None:
    """Issue: ``GET /session/:id/prompts/:promptId``, also after the session was closed."""
    running = await api.submit(session_id, "hold")
    waiting = await api.submit(session_id, "hold")
    await wait_all_tasks_blocked()
    path = f"/session/{session_id}/prompts"
    assert (await api.get(f"{path}/{running}")).json() == {"promptId": running, "state": "running"}
    assert (await api.get(f"{path}/{waiting}")).json() == {"promptId": waiting, "state": "queued"}
    await api.delete(f"/session/{session_id}")
    assert (await api.get(f"{path}/{running}")).json()["state"] == "cancelled"
    reply = await api.get(f"{path}/never-seen")
    assert (reply.status, reply.json()["code"]) == (404, "prompt_not_found")
    assert (await api.get(f"/session/{UNKNOWN}/prompts/x")).json()["code"] == "session_not_found"


async def test_outcome_of_a_failed_prompt(api: Api, session_id: str) -> None:
    """Issue: ``error`` as the agent gave it."""
    outcome = await api.run(session_id, "fail")
    assert outcome["state"] == "failed"
    assert outcome["error"] == {
        "message": "Internal error",
        "code": -32603,
        "data": {"details": "400 upstream failure"},
    }
    assert (await api.run(session_id, "crash"))["error"]["errorKind"] == "internal"


async def test_outcomes_are_kept_for_a_bounded_number(api: Api, session_id: str) -> None:
    """Issue: kept for a bounded number of prompts (256)."""
    first = await api.submit(session_id, "fine")
    await api.outcome(session_id, first)
    for _ in range(256):
        submit(api.session(session_id), "fine")
        await quiet()
    reply = await api.get(f"/session/{session_id}/prompts/{first}")
    assert (reply.status, reply.json()["code"]) == (404, "prompt_not_found")


# Idempotency-Key


async def test_same_key_same_prompt(api: Api, session_id: str, runner: RestRunner) -> None:
    """Issue: never run twice; the cursor of the first answer, behind which the terminal event lies (REST-062)."""
    first = (await api.prompt(session_id, "many 1", Idempotency_Key="k 1")).json()
    await api.outcome(session_id, first["promptId"])
    reply = await api.prompt(session_id, "many 1", Idempotency_Key="k 1")
    assert (reply.status, reply.json()) == (202, first)
    spaced = b'{ "prompt" : [ {"text":"many 1", "type":"text"} ] }'
    assert (await api.post(f"/session/{session_id}/prompt", spaced, Idempotency_Key="k 1")).json() == first
    assert len(runner.started) == 1


async def test_same_key_other_body(api: Api, session_id: str) -> None:
    """Issue: 409."""
    await api.prompt(session_id, "one", Idempotency_Key="k")
    reply = await api.prompt(session_id, "two", Idempotency_Key="k")
    assert (reply.status, reply.json()["code"]) == (409, "idempotency_key_reused")


async def test_a_refusal_stores_nothing(api: Api, session_id: str) -> None:
    """Issue: a 503 stores nothing; a repeat of an accepted one is answered although the queue is full."""
    for number in range(5):
        await api.submit(session_id, "hold", Idempotency_Key=f"k{number}")
    assert (await api.prompt(session_id, "one", Idempotency_Key="late")).status == 503
    assert (await api.prompt(session_id, "hold", Idempotency_Key="k0")).status == 202
    await wait_all_tasks_blocked()
    await api.post(f"/session/{session_id}/cancel")
    await wait_all_tasks_blocked()
    assert (await api.prompt(session_id, "another", Idempotency_Key="late")).status == 202


@pytest.mark.parametrize("key", ["", "x" * 129, "caf\xe9", "tab\there"])
async def test_bad_key(api: Api, session_id: str, key: str) -> None:
    """Issue: 1 to 128 printable ASCII characters."""
    reply = await api.prompt(session_id, "one", Idempotency_Key=key)
    assert (reply.status, reply.json()["code"]) == (400, "invalid_idempotency_key")


async def test_headers_that_occur_twice(api: Api, session_id: str) -> None:
    """REST-004, issue: one of two client ids or keys must not be picked: whoever stands in front may have looked at the other."""
    known = str((await api.create())["clientId"])
    body = {"prompt": [{"type": "text", "text": "one"}]}
    for name, value, code in (
        ("X-Qwen-Client-Id", known, "invalid_client_id"),
        ("Idempotency-Key", "k", "invalid_idempotency_key"),
    ):
        reply = await api.call("POST", f"/session/{session_id}/prompt", body, [(name, value), (name, value)])
        assert (reply.status, reply.json()["code"]) == (400, code)


async def test_keys_belong_to_a_session(api: Api, session_id: str) -> None:
    """Issue: another session's key is another key."""
    other = (await api.create())["sessionId"]
    one = await api.submit(session_id, "fine", Idempotency_Key="k")
    two = await api.submit(other, "something else", Idempotency_Key="k")
    assert one != two


async def test_agent_dies_with_prompts_waiting(api: Api, session_id: str, autojump_clock: MockClock) -> None:
    """C-064: an error terminal for each prompt, ``session_died``, then a definite answer."""
    ids = [await api.submit(session_id, each) for each in ("dying 1", "hold", "hold")]
    async with api.events(session_id, Last_Event_ID="0") as stream:
        frames = await stream.rest()
    ended = {each.data["promptId"]: each.type for each in frames if each.type.startswith("turn_")}
    assert ended == dict.fromkeys(ids, "turn_error")
    assert frames[-1].type == "session_died"
    assert frames[-1].data == {"sessionId": session_id, "reason": "agent exited", "exitCode": 1}
    assert (await api.prompt(session_id, "more")).status == 404
    for each in ids:
        assert (await api.outcome(session_id, each))["state"] == "failed"
