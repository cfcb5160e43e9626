"""Create, load, resume, close, detach, delete, heartbeat, branch: rest.md section 4."""

from __future__ import annotations

import re
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from sessions import Capabilities
from sessions.errors import AgentStartError, AgentStartTimeout, RunnerError
from tests.server.rest.api import Api
from tests.server.rest.conftest import StartApi
from tests.server.rest.runner import RestRunner

UNKNOWN = "00000000-0000-4000-8000-00000000dead"
ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


async def test_create_answers_200_with_the_fields_of_the_daemon(api: Api) -> None:
    """REST-022: never 201; ``eventEpoch`` is added."""
    reply = await api.post("/session", {"cwd": "/project", "sessionScope": "thread"})
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    body = reply.json()
    assert set(body) == {"sessionId", "workspaceCwd", "attached", "clientId", "createdAt", "eventEpoch"}
    assert body["workspaceCwd"] == "/project"
    assert body["attached"] is False
    assert re.fullmatch(r"client_[0-9a-f-]{36}", body["clientId"])
    assert ISO.fullmatch(body["createdAt"])
    assert body["eventEpoch"] == api.session(body["sessionId"]).ring.epoch


async def test_scope_single_is_the_default_and_shared(api: Api) -> None:
    """REST-021."""
    first = (await api.post("/session", {})).json()
    second = (await api.post("/session")).json()
    assert (first["attached"], second["attached"]) == (False, True)
    assert first["sessionId"] == second["sessionId"]
    assert first["clientId"] != second["clientId"]
    assert second["hasActivePrompt"] is False
    other = (await api.post("/session", {"cwd": "/other place"})).json()
    assert other["sessionId"] != first["sessionId"]


async def test_scope_thread_always_creates(api: Api) -> None:
    """REST-021."""
    ids = {(await api.create())["sessionId"] for _ in range(3)}
    assert len(ids) == 3


async def test_two_at_once_share_one_session(api: Api, runner: RestRunner, autojump_clock: MockClock) -> None:
    """REST-021: the second waits for the first one's start instead of making another."""
    runner.start_delay = 1.0
    answers: list[dict[str, Any]] = []

    async def create() -> None:
        answers.append((await api.post("/session", {})).json())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(create)
        nursery.start_soon(create)
    assert sorted(each["attached"] for each in answers) == [False, True]
    assert len(runner.sessions) == 1


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"cwd": "relative"}, {"error": "`cwd` must be an absolute path when provided"}),
        ({"cwd": 7}, {"error": "`cwd` must be an absolute path when provided"}),
        (
            {"sessionScope": "x"},
            {
                "error": '`sessionScope` must be "single" or "thread" when provided',
                "code": "invalid_session_scope",
            },
        ),
        (
            {"sessionId": "zz"},
            {
                "error": '`sessionId` must be an RFC UUID v1-v5 (e.g. "550e8400-e29b-41d4-a716-446655440000")',
                "code": "invalid_session_id",
            },
        ),
    ],
)
async def test_create_validation(api: Api, body: dict[str, Any], expected: dict[str, Any]) -> None:
    """REST-020, REST-021, REST-023: the bodies of T07."""
    reply = await api.post("/session", body)
    assert (reply.status, reply.json()) == (400, expected)
    assert api.harbour.sessions == []


@pytest.mark.parametrize("value", ["", "urn:uuid:x", "550e8400-e29b-71d4-a716-446655440000", 5, ["a"]])
async def test_caller_ids_that_are_no_uuid(api: Api, value: object) -> None:
    """REST-023: versions 1 to 5 only."""
    reply = await api.post("/session", {"sessionId": value})
    assert (reply.status, reply.json()["code"]) == (400, "invalid_session_id")


async def test_unknown_workspace(api: Api) -> None:
    """REST-020."""
    reply = await api.post("/session", {"cwd": "/somewhere/else"})
    body = reply.json()
    assert (reply.status, body["code"]) == (400, "workspace_mismatch")
    assert (body["boundWorkspace"], body["requestedWorkspace"]) == ("/project", "/somewhere/else")


async def test_missing_cwd_is_the_primary_workspace(api: Api) -> None:
    """REST-020."""
    assert (await api.create())["workspaceCwd"] == "/project"
    assert (await api.create(cwd="/other place/"))["workspaceCwd"] == "/other place"


async def test_caller_id_is_kept_in_lower_case_and_implies_thread(api: Api) -> None:
    """REST-021, REST-023."""
    given = "550E8400-E29B-41D4-A716-446655440000"
    reply = await api.post("/session", {"sessionId": given})
    assert reply.json()["sessionId"] == given.lower()
    assert reply.json()["attached"] is False
    shared = await api.post("/session", {})
    assert shared.json()["sessionId"] != given.lower()
    again = await api.post("/session", {"sessionId": given.lower()})
    assert again.status == 409
    assert again.json()["code"] == "session_id_conflict"
    assert (again.json()["sessionId"], again.json()["conflict"]) == (given.lower(), "live")


async def test_ids_in_paths_compare_without_case(api: Api) -> None:
    """REST-003."""
    session_id = (await api.create())["sessionId"]
    assert (await api.get(f"/session/{session_id.upper()}/status")).json()["sessionId"] == session_id


@pytest.mark.parametrize("path", ["/session/%zz/status", "/session/%/status", "/session/%ff/status"])
async def test_bad_url_encoding(api: Api, path: str) -> None:
    """rest.md 8: ``invalid_request``."""
    reply = await api.get(path)
    assert (reply.status, reply.json()["code"]) == (400, "invalid_request")


async def test_session_limits(start: StartApi, autojump_clock: MockClock) -> None:
    """REST-024: attaching does not count."""
    async with start(max_sessions=1, max_total_sessions=2) as api:
        await api.post("/session", {})
        assert (await api.post("/session", {})).status == 200
        reply = await api.post("/session", {"sessionScope": "thread"})
        assert (reply.status, reply.headers["retry-after"]) == (503, "5")
        body = reply.json()
        assert (body["code"], body["limit"], body["scope"]) == ("session_limit_exceeded", 1, "workspace")
    async with start(max_sessions=0, max_total_sessions=2) as api:
        await api.create()
        await api.create(cwd="/other place")
        body = (await api.post("/session", {"sessionScope": "thread"})).json()
        assert (body["limit"], body["scope"]) == (2, "total")


async def test_agent_start_timeout(api: Api, runner: RestRunner) -> None:
    """REST-025."""
    runner.start_error = AgentStartTimeout(10)
    reply = await api.post("/session", {})
    body = reply.json()
    assert (reply.status, reply.headers["retry-after"]) == (504, "5")
    assert (body["code"], body["errorKind"], body["timeoutMs"]) == ("init_timeout", "init_timeout", 10_000)
    assert body["retryable"] is True


async def test_agent_that_cannot_be_started(api: Api, runner: RestRunner) -> None:
    """C-069: a reason, no session, and the next request works."""
    runner.start_error = AgentStartError("No such file: nope", error_kind="missing_binary")
    reply = await api.post("/session", {})
    body = reply.json()
    assert (reply.status, body["code"], body["errorKind"]) == (503, "acp_channel_unavailable", "missing_binary")
    assert "nope" in body["error"]
    assert api.harbour.sessions == []
    runner.start_error = None
    assert (await api.post("/session", {})).status == 200


async def test_agents_own_errors_pass_through(api: Api, runner: RestRunner) -> None:
    """REST-002."""
    runner.start_error = RunnerError("Authentication required", -32000, {"authMethods": []})
    reply = await api.post("/session", {})
    assert reply.status == 500
    assert reply.json() == {"error": "Authentication required", "code": -32000, "data": {"authMethods": []}}


async def test_client_gone_before_the_answer(api: Api, runner: RestRunner, autojump_clock: MockClock) -> None:
    """REST-026: a fresh session is removed."""
    runner.start_delay = 5.0
    async with api.driver.stream("POST", "/session", body=b"{}", Content_Length="2"):
        await trio.sleep(1)
    await trio.sleep(10)
    assert api.harbour.sessions == []
    assert all(each.closed for each in runner.sessions)


async def test_client_gone_while_waiting_for_the_shared_one(
    api: Api, runner: RestRunner, autojump_clock: MockClock
) -> None:
    """REST-026: the one that stays gets a session; the one that left leaves no client behind."""
    runner.start_delay = 5.0
    answers: list[dict[str, Any]] = []

    async def stay() -> None:
        answers.append((await api.post("/session", {})).json())

    async with trio.open_nursery() as nursery:
        async with api.driver.stream("POST", "/session", body=b"{}", Content_Length="2"):
            await trio.sleep(1)
            nursery.start_soon(stay)
            await trio.sleep(1)
    assert answers[0]["attached"] is False
    assert len(api.harbour.sessions) == 1
    assert len(api.session(answers[0]["sessionId"]).clients) == 1


async def test_model_and_mode_at_creation(api: Api, autojump_clock: MockClock) -> None:
    """REST-022 ``modelApplied``: a model that cannot be had is told, not fatal; a mode that is none is refused."""
    good = await api.create(modelServiceId="large", approvalMode="default")
    assert good["modelApplied"] is True
    state = api.session(good["sessionId"]).state()
    assert state["models"]["currentModelId"] == "large"
    bad = await api.create(modelServiceId="unknown")
    assert bad["modelApplied"] is False
    events = [each.type for each in api.session(bad["sessionId"]).ring.read(0, 10)]
    assert events == ["model_switch_failed"]
    count = len(api.harbour.sessions)
    reply = await api.post("/session", {"sessionScope": "thread", "approvalMode": "reckless"})
    body = reply.json()
    assert (reply.status, body["code"], body["allowed"]) == (400, "invalid_approval_mode", ["default"])
    await trio.sleep(5)
    assert len(api.harbour.sessions) == count


async def test_source_is_kept(api: Api) -> None:
    """REST-022, ``session_source_metadata``."""
    created = await api.create(sourceType="ide", sourceId="win-1")
    assert (created["sourceType"], created["sourceId"]) == ("ide", "win-1")
    status = (await api.get(f"/session/{created['sessionId']}/status")).json()
    assert (status["sourceType"], status["sourceId"]) == ("ide", "win-1")
    assert (await api.post("/session", {"sourceType": 3})).status == 400


# Load and resume


async def test_load_of_a_live_session(api: Api) -> None:
    """REST-030, REST-031: finished turns compacted, the merged chunk keeps the last id."""
    session_id = (await api.create())["sessionId"]
    await api.run(session_id, "many 3")
    await api.submit(session_id, "hold on")
    await trio.testing.wait_all_tasks_blocked()
    reply = await api.post(f"/session/{session_id}/load", {"cwd": "/project"})
    body = reply.json()
    assert reply.status == 200
    assert (body["attached"], body["hasActivePrompt"]) == (True, True)
    assert body["state"]["modes"]["currentModeId"] == "default"
    shown = [(each["id"], each["type"]) for each in body["compactedReplay"]]
    assert shown == [(1, "session_update"), (4, "session_update"), (5, "turn_complete")]
    merged = body["compactedReplay"][1]["data"]["update"]
    assert merged["content"]["text"] == "1 2 3 "
    assert [each["id"] for each in body["liveJournal"]] == [6]
    assert (body["lastEventId"], body["eventEpoch"]) == (6, api.session(session_id).ring.epoch)
    assert [(each["terminal"], each["stopReason"]) for each in body["promptTerminals"]] == [("completed", "end_turn")]


async def test_history_and_stream_are_gapless(api: Api) -> None:
    """REST-032."""
    session_id = (await api.create())["sessionId"]
    await api.run(session_id, "one")
    loaded = (await api.post(f"/session/{session_id}/load")).json()
    await api.run(session_id, "two")
    frames = await api.replay(session_id, loaded["lastEventId"])
    assert frames[0].id == loaded["lastEventId"] + 1
    assert frames[-2].type == "turn_complete"


async def test_resume_has_no_history(api: Api) -> None:
    """REST-030."""
    session_id = (await api.create())["sessionId"]
    await api.run(session_id, "one")
    body = (await api.post(f"/session/{session_id}/resume")).json()
    assert "compactedReplay" not in body
    assert "liveJournal" not in body
    assert (body["lastEventId"], body["hasActivePrompt"]) == (3, False)
    assert body["eventEpoch"] == api.session(session_id).ring.epoch


async def test_load_of_a_closed_session_goes_on_counting(api: Api, runner: RestRunner) -> None:
    """REST-030, REST-050: the transcript stays loadable. The former end keeps its id, and is no part of the history: a client
    that read it there would take the session for closed."""
    session_id = (await api.create())["sessionId"]
    await api.run(session_id, "one")
    await api.delete(f"/session/{session_id}")
    body = (await api.post(f"/session/{session_id}/load")).json()
    assert (body["sessionId"], body["attached"], body["lastEventId"]) == (session_id, False, 4)
    assert [each["type"] for each in body["compactedReplay"]][-1] == "turn_complete"
    assert body["liveJournal"] == []
    assert runner.sessions[-1].spec.start == "load"
    frames = await api.replay(session_id, 3)
    assert [each.type for each in frames] == ["session_closed", "replay_complete"]


async def test_load_from_the_agents_storage(api: Api, runner: RestRunner) -> None:
    """REST-030: what the agent replays is finished history."""
    stored = "11111111-1111-4111-8111-111111111111"
    runner.history = ["from ", "before"]
    body = (await api.post(f"/session/{stored}/load")).json()
    assert body["sessionId"] == stored
    assert [each["data"]["update"]["content"]["text"] for each in body["compactedReplay"]] == ["from before"]
    assert body["liveJournal"] == []


@pytest.mark.parametrize("action", ["load", "resume"])
async def test_unknown_session(api: Api, runner: RestRunner, action: str) -> None:
    """REST-033: whether the agent cannot load at all, or says that it knows no such session."""
    runner.answers = Capabilities()
    reply = await api.post(f"/session/{UNKNOWN}/{action}")
    assert (reply.status, reply.json()["code"], reply.json()["sessionId"]) == (404, "session_not_found", UNKNOWN)
    runner.answers = Capabilities(load_session=True, resume_session=True)
    runner.start_error = RunnerError("Internal error", -32603, {"details": "no such session"})
    reply = await api.post(f"/session/{UNKNOWN}/{action}")
    assert (reply.status, reply.json()["code"]) == (404, "session_not_found")


async def test_ids_no_agent_should_see(api: Api, runner: RestRunner) -> None:
    """An id that could be taken for a path never reaches the agent."""
    reply = await api.post("/session/..%2e%5c..%20etc/load")
    assert reply.status == 404
    assert runner.sessions == []


async def test_restore_in_progress(api: Api, runner: RestRunner, autojump_clock: MockClock) -> None:
    """REST-033."""
    runner.start_delay = 3.0
    codes: list[tuple[int, str | None]] = []

    async def load() -> None:
        reply = await api.post(f"/session/{UNKNOWN}/load")
        codes.append((reply.status, reply.json().get("code")))
        if reply.status == 409:
            assert reply.headers["retry-after"] == "5"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(load)
        nursery.start_soon(load)
    assert sorted(codes, key=str) == [(200, None), (409, "restore_in_progress")]


async def test_restore_timeout(start: StartApi, runner: RestRunner, autojump_clock: MockClock) -> None:
    """REST-033."""
    runner.start_delay = 100.0
    async with start(restore_timeout_ms=2000) as api:
        reply = await api.post(f"/session/{UNKNOWN}/load")
    body = reply.json()
    assert (reply.status, reply.headers["retry-after"]) == (504, "5")
    assert (body["code"], body["errorKind"]) == ("session_restore_timeout", "restore_timeout")
    assert (body["retryable"], body["action"], body["timeoutMs"]) == (True, "load", 2000)


async def test_load_says_what_is_missing(start: StartApi, autojump_clock: MockClock) -> None:
    """rest.md 6.1 ``history_truncated``; ``partial`` (REST-031)."""
    async with start(event_ring_size=4) as api:
        session_id = (await api.create())["sessionId"]
        await api.run(session_id, "many 10")
        body = (await api.post(f"/session/{session_id}/load")).json()
    first = body["compactedReplay"][0]
    assert "id" not in first
    assert (first["type"], first["data"]["truncatedEvents"]) == ("history_truncated", 8)
    assert first["data"]["fullTranscriptAvailable"] is False
    assert (body["partial"], body["historyHasMore"]) == (True, False)


async def test_load_is_bounded_in_bytes(start: StartApi, autojump_clock: MockClock) -> None:
    """The answer to a load is not larger than one replay; the rest is in the transcript."""
    async with start(replay_bytes=2048) as api:
        session_id = (await api.create())["sessionId"]
        for _ in range(4):
            await api.run(session_id, "x" * 400)
        body = (await api.post(f"/session/{session_id}/load")).json()
        first = body["compactedReplay"][0]
        assert first["type"] == "history_truncated"
        assert first["data"]["fullTranscriptAvailable"] is True
        assert body["historyHasMore"] is True
        pages = (await api.get(f"/session/{session_id}/transcript")).json()
        assert pages["events"][0]["id"] == 1


async def test_a_known_client_keeps_its_id(api: Api) -> None:
    """REST-004: the id of a client that comes back stays; a stranger's is not adopted (client-sdk 3.1)."""
    created = await api.create()
    session_id, client_id = created["sessionId"], created["clientId"]
    again = (await api.post(f"/session/{session_id}/load", X_Qwen_Client_Id=client_id)).json()
    assert again["clientId"] == client_id
    other = (await api.post(f"/session/{session_id}/resume", X_Qwen_Client_Id="client_of_another_life")).json()
    assert other["clientId"] not in (client_id, "client_of_another_life")
    assert len(api.session(session_id).clients) == 2


async def test_forgotten_client_ids(start: StartApi) -> None:
    """REST-004: attaching for ever is bounded, and whoever was forgotten is told so and gets a new id (CLI-043)."""
    async with start(max_clients=3) as api:
        created = await api.create()
        path = f"/session/{created['sessionId']}"
        ids = [(await api.post(f"{path}/resume")).json()["clientId"] for _ in range(50)]
        assert list(api.session(created["sessionId"]).clients) == ids[-3:]
        refused = await api.post(f"{path}/heartbeat", X_Qwen_Client_Id=created["clientId"])
        assert (refused.status, refused.json()["code"]) == (400, "invalid_client_id")
        again = await api.post(f"{path}/resume", X_Qwen_Client_Id=created["clientId"])
        assert again.json()["clientId"] not in (created["clientId"], *ids)
        used = await api.post(f"{path}/heartbeat", X_Qwen_Client_Id=again.json()["clientId"])
        assert used.status == 200


# Ends


async def test_close(api: Api) -> None:
    """REST-050: 204, ``session_closed`` with who closed, streams end, then 404."""
    created = await api.create()
    session_id, client_id = created["sessionId"], created["clientId"]
    async with api.events(session_id) as frames:
        reply = await api.delete(f"/session/{session_id}", X_Qwen_Client_Id=client_id)
        assert (reply.status, reply.body) == (204, b"")
        rest = await frames.rest()
    assert [each.type for each in rest] == ["session_closed"]
    assert rest[0].data == {"sessionId": session_id, "reason": "client_close", "closedBy": client_id}
    again = await api.delete(f"/session/{session_id}")
    assert again.status == 404
    assert again.json() == {
        "error": f'No session with id "{session_id}"',
        "code": "session_not_found",
        "sessionId": session_id,
    }


async def test_close_aborts_the_prompts(api: Api) -> None:
    """REST-050, C-058: one terminal event for each accepted prompt, before ``session_closed``."""
    session_id = (await api.create())["sessionId"]
    ids = [await api.submit(session_id, "hold") for _ in range(3)]
    async with api.events(session_id) as frames:
        await api.delete(f"/session/{session_id}")
        rest = await frames.rest()
    ended = [each.data["promptId"] for each in rest if each.type in ("turn_complete", "turn_error")]
    assert sorted(ended) == sorted(ids)
    assert rest[-1].type == "session_closed"
    for each in ids:
        assert (await api.outcome(session_id, each))["state"] == "cancelled"


async def test_detach(api: Api) -> None:
    """REST-051."""
    created = await api.create()
    path = f"/session/{created['sessionId']}"
    reply = await api.post(f"{path}/detach", X_Qwen_Client_Id=created["clientId"])
    assert (reply.status, reply.body) == (204, b"")
    assert (await api.post(f"{path}/heartbeat", X_Qwen_Client_Id=created["clientId"])).status == 400
    assert (await api.post(f"{path}/detach")).status == 204
    assert (await api.post(f"/session/{UNKNOWN}/detach")).status == 404


async def test_delete_removes_history(api: Api) -> None:
    """REST-052."""
    live = (await api.create())["sessionId"]
    closed = (await api.create())["sessionId"]
    await api.delete(f"/session/{closed}")
    reply = await api.post("/sessions/delete", {"sessionIds": [live, closed.upper(), UNKNOWN, live]})
    assert reply.json() == {"removed": [live, closed], "notFound": [UNKNOWN], "errors": []}
    listed = (await api.get("/workspace/%2Fproject/sessions")).json()
    assert listed["sessions"] == []


@pytest.mark.parametrize("ids", [None, [], "x", [1], ["x"] * 101])
async def test_delete_validation(api: Api, ids: object) -> None:
    """REST-052: 1 to 100 ids."""
    assert (await api.post("/sessions/delete", {"sessionIds": ids})).status == 400


async def test_heartbeat(api: Api, autojump_clock: MockClock) -> None:
    """REST-053."""
    created = await api.create()
    path = f"/session/{created['sessionId']}/heartbeat"
    before = api.session(created["sessionId"]).last_used
    await trio.sleep(2)
    body = (await api.post(path, X_Qwen_Client_Id=created["clientId"])).json()
    assert set(body) == {"sessionId", "clientId", "lastSeenAt"}
    assert body["clientId"] == created["clientId"]
    assert isinstance(body["lastSeenAt"], int)
    assert api.session(created["sessionId"]).last_used > before
    assert "clientId" not in (await api.post(path)).json()


# Branch


async def test_branch_waits_its_turn_and_takes_no_slot(api: Api, runner: RestRunner, autojump_clock: MockClock) -> None:
    """REST-123, ACP-214."""
    runner.answers = Capabilities(fork_session=True)
    session_id = (await api.create())["sessionId"]
    for _ in range(5):
        await api.submit(session_id, "hold")
    replies = []

    async def branch() -> None:
        replies.append(await api.post(f"/session/{session_id}/branch", {"name": "a try"}))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(branch)
        await trio.sleep(1)
        assert replies == []
        for _ in range(5):
            assert (await api.post(f"/session/{session_id}/cancel")).status == 204
            await trio.testing.wait_all_tasks_blocked()
    body = replies[0].json()
    assert replies[0].status == 200
    assert body["sessionId"] != session_id
    assert (body["displayName"], body["attached"]) == ("a try", False)
    told = [each.value() for each in api.session(session_id).ring.read(0, 100) if each.type == "session_branched"]
    assert told == [{"sourceSessionId": session_id, "newSessionId": body["sessionId"], "displayName": "a try"}]


async def test_branch_of_an_agent_that_cannot(api: Api, runner: RestRunner) -> None:
    """An agent's inability is not a missing route."""
    session_id = (await api.create())["sessionId"]
    reply = await api.post(f"/session/{session_id}/branch")
    assert (reply.status, reply.json()["code"]) == (501, "not_supported")
