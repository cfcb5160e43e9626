"""Capabilities, lists, settings, views, errors of the surface as a whole."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trio
from trio.testing import MockClock

from server.routes.rest import errors as errors_module
from server.routes.rest.capabilities import FEATURES
from server.routes.rest.errors import ENGINE_ERRORS, REFUSALS, Kind, answer
from server.routes.rest.private import PRIVATE_ROUTES
from sessions import errors as engine_errors
from sessions.runner import StoredSession
from tests.server.rest.api import Api
from tests.server.rest.conftest import StartApi
from tests.server.rest.runner import RestRunner

UNKNOWN = "00000000-0000-4000-8000-00000000dead"


@pytest.fixture
async def session_id(api: Api) -> str:
    return str((await api.create())["sessionId"])


# Capabilities


async def test_capabilities(api: Api) -> None:
    """REST-011, REST-012, REST-014, REST-015."""
    body = (await api.get("/capabilities")).json()
    assert body["v"] == 1
    assert body["protocolVersions"] == {"current": "v1", "supported": ["v1"]}
    assert body["mode"] == "http-bridge"
    assert body["transports"] == ["rest"]
    assert body["workspaceCwd"] == "/project"
    assert body["policy"] == {"permission": "first-responder"}
    limits = body["limits"]
    assert limits["maxPendingPromptsPerSession"] == 5
    assert limits["sessionRestoreTimeoutMs"] == 60000
    assert (limits["maxSessionsPerWorkspace"], limits["maxTotalSessions"]) == (32, 800)
    assert [(each["cwd"], each["primary"], each["trusted"]) for each in body["workspaces"]] == [
        ("/project", True, True),
        ("/other place", False, True),
    ]
    assert len({each["id"] for each in body["workspaces"]}) == 2


REQUIRED = [
    "health",
    "capabilities",
    "session_create",
    "session_scope_override",
    "session_id_override",
    "session_load",
    "session_resume",
    "unstable_session_resume",
    "session_list",
    "session_prompt",
    "non_blocking_prompt",
    "session_cancel",
    "session_events",
    "typed_event_schema",
    "slow_client_warning",
    "session_close",
    "client_identity",
    "client_heartbeat",
    "permission_vote",
    "session_permission_vote",
    "permission_mediation",
    "session_set_model",
    "session_approval_mode_control",
    "session_metadata",
    "session_status",
    "session_context",
    "session_source_metadata",
]


async def test_features(api: Api) -> None:
    """REST-013: the core is there, and nothing conditional that does not hold."""
    features = (await api.get("/capabilities")).json()["features"]
    assert set(REQUIRED) <= set(features)
    assert len(features) == len(set(features))
    assert "multi_workspace_sessions" in features
    never = {"session_shell_command", "rate_limit", "workspace_mcp", "workspace_file_read", "session_archive"}
    assert not never & set(features)
    conditional = {"require_auth", "allow_origin", "prompt_absolute_deadline", "writer_idle_timeout"}
    assert not conditional & set(features)


async def test_conditional_features(start: StartApi) -> None:
    """REST-012, REST-013, REST-014 under another configuration; null where there is no limit."""
    async with start(
        workspace=("/project",),
        prompt_deadline_ms=1000,
        writer_idle_timeout_ms=1000,
        allow_origin=("https://app.example",),
        transports=("rest", "acp-http"),
        max_pending_prompts_per_session=0,
        max_sessions=0,
    ) as api:
        body = (await api.get("/capabilities")).json()
    assert {"allow_origin", "prompt_absolute_deadline", "writer_idle_timeout"} <= set(body["features"])
    assert "multi_workspace_sessions" not in body["features"]
    assert body["transports"] == ["rest", "acp-http"]
    assert body["limits"]["maxPendingPromptsPerSession"] is None
    assert body["limits"]["maxSessionsPerWorkspace"] is None


async def test_health(api: Api) -> None:
    """REST-010."""
    reply = await api.get("/health")
    assert (reply.status, reply.json()) == (200, {"status": "ok"})
    deep = (await api.get("/health?deep=1")).json()
    assert (deep["status"], deep["workspaceCount"], deep["sessions"]) == ("ok", 2, 0)


# The surface as a whole


async def test_unknown_routes(api: Api) -> None:
    """REST-006: JSON."""
    for path in ("/nope", "/session/x/nope", "/workspace/nope", "/"):
        reply = await api.get(path)
        assert (reply.status, reply.json()) == (404, {"error": "Not found"})


async def test_private_routes_say_so(api: Api) -> None:
    """Issue: a 404 with a code that says that the server does not have this."""
    for route in PRIVATE_ROUTES:
        path = route.replace(":id", UNKNOWN)
        for each in (path, path + "/below", path + "/below/it"):
            reply = await api.get(each)
            assert (reply.status, reply.json()["code"]) == (404, "not_supported"), each
    assert (await api.post("/workspace/mcp/reload")).json()["code"] == "not_supported"
    # Nothing that is advertised is among them.
    assert not any("workspace_" + route.split("/")[-1] in FEATURES for route in PRIVATE_ROUTES)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"cwd":', 400),
        (b"not json", 400),
        (b'{"a":NaN}', 400),
        (b'{"a":1} trailing', 400),
        (b"[1,2]", 200),
        (b'"text"', 200),
        (b"null", 200),
        (b"", 200),
        (b'{"__proto__":{"cwd":"/x"},"constructor":1,"prototype":2}', 200),
        (b'  {"cwd":"/project"}  ', 200),
        ('{"sourceType":"日本語🙂"}'.encode(), 200),
    ],
)
async def test_bodies(api: Api, body: bytes, status: int) -> None:
    """REST-001, T16; C-052 for the last ones."""
    reply = await api.post("/session", body)
    assert reply.status == status
    if status == 400:
        assert reply.json() == {"error": "Invalid JSON in request body"}


async def test_body_too_large(start: StartApi) -> None:
    """REST-001: declared, before it is read."""
    async with start() as api:
        too_long = [("content-length", str(10 * 2**20 + 1))]
        reply = await api.driver.request("POST", "/session", body=b"{}", headers=too_long)
    assert (reply.status, reply.json()) == (413, {"error": "Request body too large (max 10 MB)"})


async def test_malformed_json_comes_before_the_route(api: Api) -> None:
    """REST-005: body, then route."""
    for path in ("prompt", "cancel", "load", "model", "heartbeat", "detach", "branch", "permission/x"):
        reply = await api.post(f"/session/{UNKNOWN}/{path}", b"{")
        assert (reply.status, reply.json()) == (400, {"error": "Invalid JSON in request body"}), path


async def test_every_session_route_knows_its_404(api: Api) -> None:
    """REST-033, REST-050 and the others: the same body for each."""
    calls: list[tuple[str, str, Any]] = [
        ("POST", "prompt", {"prompt": [{}]}),
        ("POST", "cancel", {}),
        ("GET", "events", None),
        ("POST", "heartbeat", {}),
        ("POST", "detach", {}),
        ("POST", "model", {"modelId": "m"}),
        ("POST", "approval-mode", {"mode": "default"}),
        ("PATCH", "metadata", {"displayName": "n"}),
        ("GET", "status", None),
        ("GET", "context", None),
        ("GET", "supported-commands", None),
        ("GET", "pending-prompts", None),
        ("DELETE", "pending-prompts/x", None),
        ("GET", "prompts/x", None),
        ("POST", "branch", {}),
        ("GET", "transcript", None),
        ("GET", "context-usage", None),
        ("GET", "stats", None),
        ("POST", "permission/x", {"outcome": {"outcome": "cancelled"}}),
        ("DELETE", "", None),
    ]
    for method, path, body in calls:
        reply = await api.call(method, f"/session/{UNKNOWN}/{path}".rstrip("/"), body)
        assert (reply.status, reply.json()) == (
            404,
            {
                "error": f'No session with id "{UNKNOWN}"',
                "code": "session_not_found",
                "sessionId": UNKNOWN,
            },
        ), path


async def test_every_session_route_checks_the_client(api: Api, session_id: str) -> None:
    """REST-004."""
    for method, path in [
        ("POST", "cancel"),
        ("GET", "events"),
        ("POST", "heartbeat"),
        ("POST", "detach"),
        ("PATCH", "metadata"),
        ("GET", "status"),
        ("GET", "pending-prompts"),
        ("GET", "prompts/x"),
        ("GET", "transcript"),
        ("DELETE", ""),
    ]:
        url = f"/session/{session_id}/{path}".rstrip("/")
        for client_id in ("stranger", "bad id!"):
            reply = await api.call(method, url, {} if method in ("POST", "PATCH") else None, X_Qwen_Client_Id=client_id)
            assert (reply.status, reply.json()["code"]) == (400, "invalid_client_id"), (path, client_id)
    assert api.session(session_id).live


def test_every_error_of_the_engine_has_an_answer() -> None:
    """Issue: one table, nothing forgotten; and no code stands for two statuses by accident."""
    defined = [
        each
        for each in vars(engine_errors).values()
        if inspect.isclass(each) and issubclass(each, engine_errors.SessionError)
    ]
    unanswered = {
        # Never reach REST: the request is gone, or the caller is another wire.
        engine_errors.PromptAborted,
        engine_errors.UnknownOperation,
        engine_errors.WrongPhase,
        engine_errors.SessionError,
    }
    assert {each for each in defined if each not in ENGINE_ERRORS} == unanswered - {engine_errors.SessionError}
    for each in unanswered:
        assert any(base in ENGINE_ERRORS for base in each.__mro__)
    with pytest.raises(LookupError):
        answer(ValueError("not ours"))


def test_the_list_of_refusals_is_complete() -> None:
    """The documentation's table is made of it."""
    declared = [each for each in vars(errors_module).values() if isinstance(each, Kind)]
    assert set(map(id, declared)) == set(map(id, REFUSALS))


def test_details_are_what_is_sent() -> None:
    """The table tells the fields of every answer."""
    samples: dict[type[Exception], Exception] = {
        engine_errors.SessionNotFound: engine_errors.SessionNotFound("s"),
        engine_errors.PromptQueueFull: engine_errors.PromptQueueFull("s", 5, 5),
        engine_errors.SessionRestoreTimeout: engine_errors.SessionRestoreTimeout("s", "load", 1),
        engine_errors.WorkspaceMismatch: engine_errors.WorkspaceMismatch("/a", "/b"),
        engine_errors.VoteForbidden: engine_errors.VoteForbidden("r", "s", "x"),
        engine_errors.AgentStartTimeout: engine_errors.AgentStartTimeout(1),
    }
    for kind_of, sample in samples.items():
        kind, fields = ENGINE_ERRORS[kind_of]
        assert tuple(fields(sample)) == kind.details


def test_routes_keep_no_state_and_know_no_clock() -> None:
    """A route translates; what a session is stays in the engine (architecture 1)."""
    folder = Path(errors_module.__file__).parent
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            assert not isinstance(node, ast.Global), path


# Lists


def listed(body: dict[str, Any]) -> list[str]:
    return [each["sessionId"] for each in body["sessions"]]


async def test_list(api: Api, runner: RestRunner, autojump_clock: MockClock) -> None:
    """REST-040, REST-041: live, closed and stored, newest first; the fields of T07."""
    runner.stored = [
        StoredSession("22222222-2222-4222-8222-222222222222", "/project", "an old one", "2001-01-01T00:00:00Z"),
        StoredSession("33333333-3333-4333-8333-333333333333", "/project", None, None),
        StoredSession("44444444-4444-4444-8444-444444444444", "/other place", "elsewhere", "2001-01-01T00:00:00Z"),
    ]
    first = (await api.create())["sessionId"]
    second = (await api.create())["sessionId"]
    await api.delete(f"/session/{second}")
    api.session(first).updated_at += 10_000
    body = (await api.get("/workspace/%2Fproject/sessions")).json()
    assert listed(body) == [first, second, runner.stored[0].agent_session_id, runner.stored[1].agent_session_id]
    assert "nextCursor" not in body
    live = {
        "sessionId",
        "workspaceCwd",
        "createdAt",
        "updatedAt",
        "clientCount",
        "hasActivePrompt",
        "isArchived",
        "activeWorkState",
        "hasRunningBackgroundTasks",
        "isWaitingForPermission",
        "isWaitingForUserQuestion",
        "pendingInteractionCount",
        "hasTurnError",
        "pendingInteractions",
    }
    assert set(body["sessions"][0]) == live
    assert set(body["sessions"][1]) == {
        "sessionId",
        "workspaceCwd",
        "createdAt",
        "updatedAt",
        "clientCount",
        "hasActivePrompt",
        "isArchived",
    }
    assert body["sessions"][2]["displayName"] == "an old one"
    assert listed((await api.get("/workspace//project/sessions")).json()) == listed(body)


async def test_list_of_another_workspace(api: Api) -> None:
    """REST-040: the path is percent-encoded, slashes too."""
    session_id = (await api.create(cwd="/other place"))["sessionId"]
    path = quote("/other place", safe="")
    assert listed((await api.get(f"/workspace/{path}/sessions")).json()) == [session_id]
    reply = await api.get("/workspace/%2Fnowhere/sessions")
    assert (reply.status, reply.json()["code"]) == (400, "workspace_mismatch")


async def test_list_pages(api: Api) -> None:
    """REST-040: every session on exactly one page."""
    ids = [(await api.create())["sessionId"] for _ in range(7)]
    seen: list[str] = []
    cursor = ""
    for _ in range(10):
        body = (await api.get(f"/workspace/%2Fproject/sessions?size=3{cursor}")).json()
        assert len(body["sessions"]) <= 3
        seen += listed(body)
        if "nextCursor" not in body:
            break
        cursor = "&cursor=" + quote(body["nextCursor"], safe="")
    assert sorted(seen) == sorted(ids)


@pytest.mark.parametrize("query", ["size=0", "size=-1", "size=x", "size=1.5"])
async def test_list_size(api: Api, query: str) -> None:
    """REST-040: 1 to 1000; above counts as 1000."""
    reply = await api.get(f"/workspace/%2Fproject/sessions?{query}")
    assert (reply.status, reply.json()["code"]) == (400, "invalid_request")
    assert (await api.get("/workspace/%2Fproject/sessions?size=5000")).status == 200


async def test_list_cursor_and_filters(api: Api, runner: RestRunner) -> None:
    """REST-040."""
    runner.stored = [StoredSession("22222222-2222-4222-8222-222222222222", "/project", "old", None)]
    await api.create()
    ide = (await api.create(sourceType="ide", sourceId="1"))["sessionId"]
    path = "/workspace/%2Fproject/sessions"
    assert listed((await api.get(f"{path}?sourceType=ide")).json()) == [ide]
    assert listed((await api.get(f"{path}?sourceType=ide&sourceId=2")).json()) == []
    assert listed((await api.get(f"{path}?parentSessionId={ide}")).json()) == []
    assert listed((await api.get(f"{path}?archiveState=archived")).json()) == []
    assert len(listed((await api.get(f"{path}?archiveState=active&view=x&group=y")).json())) == 3
    reply = await api.get(f"{path}?cursor=made-up")
    assert (reply.status, reply.json()["code"]) == (400, "invalid_cursor")


async def test_list_with_an_agent_that_does_not_answer(
    api: Api, runner: RestRunner, session_id: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """What we have is listed in bounded time."""

    async def never(cwd: str) -> list[StoredSession]:
        await trio.sleep_forever()
        raise AssertionError

    async def broken(cwd: str) -> list[StoredSession]:
        await trio.lowlevel.checkpoint()
        raise engine_errors.RunnerLost("gone")

    for listing in (never, broken):
        monkeypatch.setattr(RestRunner, "list_sessions", lambda self, cwd, listing=listing: listing(cwd))
        with trio.fail_after(10):
            assert listed((await api.get("/workspace/%2Fproject/sessions")).json()) == [session_id]


async def test_turn_error_in_the_summary(api: Api, session_id: str) -> None:
    """REST-041: until the next turn."""
    await api.run(session_id, "fail")
    status = (await api.get(f"/session/{session_id}/status")).json()
    assert status["hasTurnError"] is True
    assert status["turnError"] == {"message": "400 upstream failure", "code": "-32603"}
    await api.run(session_id, "fine")
    status = (await api.get(f"/session/{session_id}/status")).json()
    assert (status["hasTurnError"], "turnError" in status) == (False, False)


# Model, mode, metadata


async def test_model(api: Api, session_id: str) -> None:
    """REST-120."""
    reply = await api.post(f"/session/{session_id}/model", {"modelId": "large"})
    assert reply.status == 200
    assert isinstance(reply.json(), dict)
    last = (await api.replay(session_id))[-2]
    assert (last.type, last.data) == ("model_switched", {"sessionId": session_id, "modelId": "large"})


async def test_unknown_model(api: Api, session_id: str) -> None:
    """REST-120, REST-002, T07."""
    reply = await api.post(f"/session/{session_id}/model", {"modelId": "unknown"})
    assert reply.status == 500
    assert reply.json() == {"error": "Internal error", "code": -32603, "data": {"details": "no such model"}}
    last = (await api.replay(session_id))[-2]
    assert last.type == "model_switch_failed"
    assert last.data == {"sessionId": session_id, "requestedModelId": "unknown", "error": "no such model"}


@pytest.mark.parametrize("value", [None, "", "  ", 3])
async def test_model_missing(api: Api, session_id: str, value: object) -> None:
    """REST-120, T07."""
    reply = await api.post(f"/session/{session_id}/model", {"modelId": value})
    assert reply.status == 400
    assert reply.json() == {"error": "`modelId` is required and must be a non-empty string"}


async def test_approval_mode(api: Api, session_id: str) -> None:
    """REST-121, T07."""
    client_id = (await api.post(f"/session/{session_id}/resume")).json()["clientId"]
    path = f"/session/{session_id}/approval-mode"
    reply = await api.post(path, {"mode": "default", "persist": True}, X_Qwen_Client_Id=client_id)
    assert reply.json() == {
        "sessionId": session_id,
        "mode": "default",
        "previous": "default",
        "persisted": False,
    }
    last = (await api.replay(session_id))[-2]
    assert last.type == "approval_mode_changed"
    assert last.data == {"sessionId": session_id, "previous": "default", "next": "default", "persisted": False}
    assert last.value["originatorClientId"] == client_id
    for mode in ("reckless", None, 7):
        reply = await api.post(path, {"mode": mode})
        assert (reply.status, reply.json()["code"], reply.json()["allowed"]) == (
            400,
            "invalid_approval_mode",
            ["default"],
        )


async def test_metadata(api: Api, session_id: str) -> None:
    """REST-122, T07."""
    path = f"/session/{session_id}/metadata"
    reply = await api.call("PATCH", path, {"displayName": "a name"})
    assert reply.json() == {"sessionId": session_id, "displayName": "a name"}
    last = (await api.replay(session_id))[-2]
    assert last.type == "session_metadata_updated"
    assert last.data == {"sessionId": session_id, "displayName": "a name", "titleSource": "manual"}
    assert (await api.call("PATCH", path, {})).json() == {"sessionId": session_id, "displayName": "a name"}
    status = (await api.get(f"/session/{session_id}/status")).json()
    assert (status["displayName"], status["titleSource"]) == ("a name", "manual")
    for name in (3, "x" * 300, "two\nlines"):
        reply = await api.call("PATCH", path, {"displayName": name})
        assert (reply.status, reply.json()["code"], reply.json()["field"]) == (400, "invalid_metadata", "displayName")


# Views


async def test_context(api: Api, session_id: str) -> None:
    """rest.md 2: ``{v, sessionId, workspaceCwd, state}``."""
    body = (await api.get(f"/session/{session_id}/context")).json()
    assert (body["v"], body["sessionId"], body["workspaceCwd"]) == (1, session_id, "/project")
    assert body["state"]["models"]["currentModelId"] == "small"
    assert body["state"]["modes"]["currentModeId"] == "default"


async def test_supported_commands(api: Api, session_id: str) -> None:
    """rest.md 2: as the agent announced them."""
    path = f"/session/{session_id}/supported-commands"
    assert (await api.get(path)).json()["availableCommands"] == []
    await api.run(session_id, "tool")
    assert (await api.get(path)).json()["availableCommands"] == [{"name": "help", "description": "?"}]


async def test_usage_and_stats(api: Api, session_id: str) -> None:
    """rest.md 2: what the agent reported, and zeros before."""
    before = (await api.get(f"/session/{session_id}/context-usage")).json()
    assert before["usage"]["totalTokens"] == 0
    await api.run(session_id, "tool")
    usage = (await api.get(f"/session/{session_id}/context-usage")).json()["usage"]
    assert (usage["totalTokens"], usage["contextWindowSize"], usage["modelName"]) == (120, 1000, "small")
    assert usage["breakdown"]["freeSpace"] == 880
    stats = (await api.get(f"/session/{session_id}/stats")).json()
    assert (stats["v"], stats["promptCount"]) == (1, 1)
    assert (stats["tools"]["totalCalls"], stats["tools"]["totalSuccess"], stats["tools"]["totalFail"]) == (2, 1, 1)
    assert stats["tools"]["byName"]["read"]["count"] == 2


async def test_transcript_pages(api: Api, session_id: str) -> None:
    """rest.md 2; also after the close."""
    for number in range(5):
        await api.run(session_id, f"say {number}")
    await api.delete(f"/session/{session_id}")
    path = f"/session/{session_id}/transcript"
    whole = (await api.get(path)).json()
    assert (whole["v"], whole["sessionId"], whole["hasMore"]) == (1, session_id, False)
    ids = [each["id"] for each in whole["events"]]
    assert ids == list(range(1, 17))
    for direction in ("", "&direction=backward"):
        seen: list[int] = []
        cursor = ""
        while True:
            page = (await api.get(f"{path}?limit=5{direction}{cursor}")).json()
            seen += [each["id"] for each in page["events"]]
            if not page["hasMore"]:
                break
            cursor = f"&cursor={page['nextCursor']}"
        assert sorted(seen) == ids
        assert len(seen) == len(ids)
    assert (await api.get(f"{path}?cursor=x")).json()["code"] == "invalid_cursor"
    assert (await api.get(f"{path}?limit=0")).status == 400


async def test_transcript_says_what_is_gone(start: StartApi) -> None:
    """``partial``."""
    async with start(event_ring_size=4) as api:
        session_id = (await api.create())["sessionId"]
        await api.run(session_id, "many 10")
        assert (await api.get(f"/session/{session_id}/transcript")).json()["partial"] is True


async def test_providers(api: Api, session_id: str) -> None:
    """rest.md 2."""
    body = (await api.get("/workspace/providers")).json()
    assert (body["v"], body["workspaceCwd"], body["initialized"]) == (1, "/project", True)
    assert body["current"] == {"authType": "fake", "modelId": "small"}


async def test_daemon_status(api: Api, session_id: str) -> None:
    """rest.md 2."""
    body = (await api.get("/daemon/status")).json()
    assert (body["v"], body["detail"], body["status"], body["issues"]) == (1, "summary", "ok", [])
    assert body["limits"]["maxPendingPromptsPerSession"] == 5
    assert body["runtime"]["sessions"]["active"] == 1
    assert "full" not in body
    full = (await api.get("/daemon/status?detail=full")).json()
    assert full["full"]["sessions"][0]["sessionId"] == session_id
