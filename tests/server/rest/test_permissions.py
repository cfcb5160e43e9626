"""Votes on permission requests (rest.md section 7)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.server.rest.api import Api, Frames
from tests.server.rest.conftest import StartApi
from tests.support.http import Reply

CANCELLED = {"outcome": {"outcome": "cancelled"}}
SHAPE = '`outcome` must be `{ outcome: "cancelled" }` or `{ outcome: "selected", optionId: string }`'


def select(option: str, **more: Any) -> dict[str, Any]:
    return {"outcome": {"outcome": "selected", "optionId": option}, **more}


class Asked:
    """A session whose agent has asked; ``prompt_id`` is the turn that waits."""

    def __init__(self, api: Api, session_id: str, prompt_id: str, request_id: str, stream: Frames) -> None:
        self.api = api
        self.session_id = session_id
        self.prompt_id = prompt_id
        self.request_id = request_id
        self.stream = stream

    async def vote(self, body: object, **headers: str) -> Reply:
        return await self.api.post(f"/session/{self.session_id}/permission/{self.request_id}", body, **headers)

    async def vote_plainly(self, body: object, **headers: str) -> Reply:
        return await self.api.post(f"/permission/{self.request_id}", body, **headers)

    async def said(self) -> str:
        """What the agent made of the answer."""
        frames = await self.stream.until("turn_complete")
        texts = [each.data["update"]["content"]["text"] for each in frames if each.type == "session_update"]
        return "".join(texts)


@asynccontextmanager
async def asking(api: Api, **headers: str) -> AsyncIterator[Asked]:
    session_id = (await api.create())["sessionId"]
    async with api.events(session_id) as stream:
        prompt_id = await api.submit(session_id, "ask", **headers)
        request = (await stream.until("permission_request"))[-1]
        yield Asked(api, session_id, prompt_id, request.data["requestId"], stream)


async def test_request_and_vote(api: Api) -> None:
    """REST-100, REST-101, C-032: 200 ``{}``; everybody learns what was decided."""
    async with asking(api) as asked:
        request = asked.stream.seen[-1]
        assert request.id is not None
        assert set(request.data) == {"requestId", "sessionId", "toolCall", "options"}
        assert [set(each) for each in request.data["options"]] == [{"optionId", "name", "kind"}] * 2
        assert request.value["promptId"] == asked.prompt_id
        reply = await asked.vote(select("a"))
        assert (reply.status, reply.json()) == (200, {})
        resolved = await asked.stream.next()
        assert resolved.type == "permission_resolved"
        assert resolved.data["outcome"] == {"outcome": "selected", "optionId": "a"}
        assert await asked.said() == "answer: a"


async def test_vote_on_the_plain_route(api: Api) -> None:
    """REST-103."""
    async with asking(api) as asked, asking(api) as other:
        assert (await asked.vote_plainly(CANCELLED)).json() == {}
        assert await asked.said() == "answer: None"
        assert (await other.vote_plainly(select("b"))).status == 200
        assert await other.said() == "answer: b"


async def test_who_asked_and_who_voted(api: Api) -> None:
    """REST-091."""
    session_id = (await api.create())["sessionId"]
    author, voter = [(await api.post(f"/session/{session_id}/resume")).json()["clientId"] for _ in range(2)]
    async with api.events(session_id) as stream:
        await api.submit(session_id, "ask", X_Qwen_Client_Id=author)
        request = (await stream.until("permission_request"))[-1]
        assert request.value["originatorClientId"] == author
        path = f"/session/{session_id}/permission/{request.data['requestId']}"
        await api.post(path, select("a"), X_Qwen_Client_Id=voter)
        resolved = await stream.next()
        assert (resolved.value["originatorClientId"], resolved.data["voterClientId"]) == (voter, voter)


async def test_a_late_vote_gets_the_recorded_outcome(api: Api) -> None:
    """REST-101, C-034, T09: 404, ``permission_already_resolved``, and nothing for the agent."""
    async with asking(api) as asked:
        await asked.vote(select("a"))
        await asked.stream.until("turn_complete")
        reply = await asked.vote(select("b"))
        assert reply.status == 404
        assert reply.json() == {
            "error": "No pending permission request for session",
            "sessionId": asked.session_id,
            "requestId": asked.request_id,
            "outcome": {"outcome": "selected", "optionId": "a"},
        }
        told = await asked.stream.next()
        assert told.type == "permission_already_resolved"
        assert told.data == {
            "requestId": asked.request_id,
            "sessionId": asked.session_id,
            "outcome": {"outcome": "selected", "optionId": "a"},
        }
        reply = await asked.vote_plainly(CANCELLED)
        assert (reply.status, reply.json()["error"]) == (404, "No pending permission request")
        assert reply.json()["outcome"]["optionId"] == "a"


async def test_options_that_were_not_offered(api: Api) -> None:
    """REST-102, C-037: refused, and the request stays open."""
    async with asking(api) as asked:
        for option in ("c", "", "__cancelled__"):
            reply = await asked.vote(select(option))
            body = reply.json()
            assert (reply.status, body["code"]) == (400, "invalid_option_id")
            assert (body["requestId"], body["optionId"]) == (asked.request_id, option)
        assert (await asked.vote(select("a"))).status == 200
        assert await asked.said() == "answer: a"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"outcome": "x"},
        {"outcome": {}},
        {"outcome": {"outcome": "selected"}},
        {"outcome": {"outcome": "selected", "optionId": 3}},
        {"outcome": {"outcome": "maybe", "optionId": "a"}},
    ],
)
async def test_shape_of_a_vote(api: Api, body: object) -> None:
    """REST-100: 400 with the text only, before anything is looked up (T07)."""
    for path in ("/permission/nope", "/session/nope/permission/nope"):
        reply = await api.post(path, body)
        assert (reply.status, reply.json()) == (400, {"error": SHAPE})


async def test_answers_are_texts(api: Api) -> None:
    """REST-100."""
    async with asking(api) as asked:
        assert (await asked.vote(select("a", answers={"q": 1}))).status == 400
        assert (await asked.vote(select("a", answers={"q": "yes"}))).status == 200


async def test_votes_from_outside_change_nothing(api: Api) -> None:
    """C-038: another session's URL answers exactly as for a request that never was."""
    other = (await api.create())["sessionId"]
    async with asking(api) as asked:
        real = await api.post(f"/session/{other}/permission/{asked.request_id}", select("a"))
        made_up = await api.post(f"/session/{other}/permission/made-up", select("a"))
        assert (real.status, made_up.status) == (404, 404)
        assert real.json() == {
            "error": "No pending permission request for session",
            "sessionId": other,
            "requestId": asked.request_id,
        }
        assert real.json().keys() == made_up.json().keys()
        reply = await asked.vote(select("a"), X_Qwen_Client_Id="stranger")
        assert (reply.status, reply.json()["code"]) == (400, "invalid_client_id")
        assert (await asked.vote_plainly(select("a"), X_Qwen_Client_Id="stranger")).status == 400
        assert (await asked.vote(select("a"))).status == 200


async def test_unknown_request(api: Api) -> None:
    """REST-101, T07."""
    session_id = (await api.create())["sessionId"]
    reply = await api.post("/permission/nope", CANCELLED)
    assert (reply.status, reply.json()) == (404, {"error": "No pending permission request", "requestId": "nope"})
    reply = await api.post(f"/session/{session_id}/permission/nope", CANCELLED)
    assert reply.json() == {
        "error": "No pending permission request for session",
        "sessionId": session_id,
        "requestId": "nope",
    }


async def test_request_survives_a_reconnect(api: Api) -> None:
    """C-033: the same identity on every copy; one vote resolves it."""
    async with asking(api) as asked:
        cursor = (asked.stream.seen[-1].id or 0) - 1
        for _ in range(2):
            frames = await api.replay(asked.session_id, cursor)
            assert frames[0].data["requestId"] == asked.request_id
        assert (await asked.vote(select("a"))).status == 200
        assert api.session(asked.session_id).permissions.pending == []
        # The request is still in the ring and is shown again; a vote on it changes nothing (issue, ACP-173).
        again = await api.replay(asked.session_id, cursor)
        assert again[0].data["requestId"] == asked.request_id
        assert (await asked.vote(select("b"))).status == 404


async def test_one_open_question_blocks_no_other_session(api: Api) -> None:
    """C-035."""
    async with asking(api) as first, asking(api) as second:
        await second.vote(select("b"))
        assert await second.said() == "answer: b"
        assert len(api.session(first.session_id).permissions.pending) == 1
        await first.vote(select("a"))
        assert await first.said() == "answer: a"


async def test_cancel_answers_the_question(api: Api) -> None:
    """C-036."""
    async with asking(api) as asked:
        await api.post(f"/session/{asked.session_id}/cancel")
        frames = await asked.stream.until("turn_complete")
        resolved = next(each for each in frames if each.type == "permission_resolved")
        assert resolved.data["outcome"] == {"outcome": "cancelled"}
        assert frames[-1].data["stopReason"] == "cancelled"
        assert (await asked.vote(select("a"))).status == 404


async def test_two_opposite_votes_at_once(api: Api) -> None:
    """C-039."""
    for _ in range(20):
        async with asking(api) as asked:
            statuses: list[int] = []

            async def vote(option: str, asked: Asked = asked, statuses: list[int] = statuses) -> None:
                statuses.append((await asked.vote(select(option))).status)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(vote, "a")
                nursery.start_soon(vote, "b")
            assert sorted(statuses) == [200, 404]
            frames = await asked.stream.until("turn_complete")
            told = {
                each.data["outcome"]["optionId"]
                for each in frames
                if each.type in ("permission_resolved", "permission_already_resolved")
            }
            said = [each.data["update"]["content"]["text"] for each in frames if each.type == "session_update"]
            assert said == [f"answer: {told.pop()}"]
            assert not told
        await api.delete(f"/session/{asked.session_id}")


async def test_nobody_to_ask(api: Api) -> None:
    """ACP-178: without any reader the agent is answered at once."""
    session_id = (await api.create())["sessionId"]
    assert (await api.run(session_id, "ask"))["state"] == "completed"


async def test_summary_shows_what_waits(api: Api) -> None:
    """REST-041: ``isWaitingForPermission``, ``pendingInteractions``."""
    async with asking(api) as asked:
        status = (await api.get(f"/session/{asked.session_id}/status")).json()
    assert (status["isWaitingForPermission"], status["pendingInteractionCount"]) == (True, 1)
    shown = status["pendingInteractions"][0]
    assert (shown["requestId"], shown["kind"], shown["action"]) == (
        asked.request_id,
        "permission",
        {"title": "do it"},
    )
    assert shown["options"][0] == {"optionId": "a", "label": "a", "kind": "allow_once"}


# Policies


async def test_local_only(start: StartApi) -> None:
    """REST-102, REST-104: the socket decides, whatever headers say."""
    async with start(permission_policy="local-only", client="203.0.113.9") as api, asking(api) as asked:
        reply = await asked.vote(select("a"), X_Forwarded_For="127.0.0.1")
        assert reply.status == 403
        assert reply.json() == {
            "error": "Vote refused by the permission policy (remote_not_allowed)",
            "code": "permission_forbidden",
            "requestId": asked.request_id,
            "sessionId": asked.session_id,
            "reason": "remote_not_allowed",
        }
        assert (await asked.stream.next()).type == "permission_forbidden"
    async with start(permission_policy="local-only") as api, asking(api) as asked:
        assert (await asked.vote(select("a"))).status == 200


async def test_designated(start: StartApi) -> None:
    """REST-104: only the author of the prompt."""
    async with start(permission_policy="designated") as api:
        session_id = (await api.create())["sessionId"]
        author, other = [(await api.post(f"/session/{session_id}/resume")).json()["clientId"] for _ in range(2)]
        async with api.events(session_id) as stream:
            await api.submit(session_id, "ask", X_Qwen_Client_Id=author)
            request = (await stream.until("permission_request"))[-1]
            path = f"/session/{session_id}/permission/{request.data['requestId']}"
            reply = await api.post(path, select("a"), X_Qwen_Client_Id=other)
            assert (reply.status, reply.json()["reason"]) == (403, "designated_mismatch")
            assert (await api.post(path, select("a"), X_Qwen_Client_Id=author)).status == 200


async def test_consensus(start: StartApi) -> None:
    """REST-101, REST-104: a vote that is only counted is 200 too; one voter cannot be a quorum."""
    async with start(permission_policy="consensus", permission_quorum=2) as api:
        async with asking(api) as asked:
            first, second = [
                (await api.post(f"/session/{asked.session_id}/resume")).json()["clientId"] for _ in range(2)
            ]
            for _ in range(2):
                assert (await asked.vote(select("a"), X_Qwen_Client_Id=first)).status == 200
                assert (await asked.stream.next()).type == "permission_partial_vote"
            assert (await asked.vote(select("a"), X_Qwen_Client_Id=second)).status == 200
            assert await asked.said() == "answer: a"


async def test_timeout(start: StartApi, autojump_clock: MockClock) -> None:
    """ACP-179."""
    async with start(permission_timeout_ms=5000) as api, asking(api) as asked:
        await wait_all_tasks_blocked()
        assert await asked.said() == "answer: None"
