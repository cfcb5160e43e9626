"""Permission requests on the wire, both ways to vote, and who may (acp-http 6)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from server.routes.acp.permissions import KEPT, Questions, parse_vote
from sessions import PermissionOutcome, PermissionPolicy
from tests.support.acp import AcpClient, Feed, Frame, Place, acp_place
from tests.support.engine import said

SELECT_A = {"outcome": {"outcome": "selected", "optionId": "a"}}
CANCELLED = {"outcome": {"outcome": "cancelled"}}


async def ask(client: AcpClient, feed: Feed, session_id: str, id: int = 1) -> Frame:
    """Have the agent ask; the request as it was shown."""
    await client.prompt(session_id, "ask", id=id)
    return (await feed.until_kind("session/request_permission"))[-1]


def request_id(frame: Frame) -> str:
    found: str = frame.message["params"]["_meta"]["requestId"]
    return found


# Shape and identity


async def test_shape(autojump_clock: MockClock) -> None:
    """ACP-172: a request with a string id of ours, both names of the key, and an event id."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen(session_id) as feed:
            frame = await ask(client, feed, session_id)
            assert frame.id == 2
            assert frame.message["id"] == f"_qwen_perm_{client.connection_id}_1"
            params = frame.message["params"]
            assert params["sessionId"] == session_id
            assert params["toolCall"] == {"toolCallId": "t1", "title": "do it"}
            assert [option["optionId"] for option in params["options"]] == ["a", "b"]
            assert params["_meta"] == {"requestId": request_id(frame), "qwen": {"requestId": request_id(frame)}}


async def test_replayed_with_the_same_id_until_answered(autojump_clock: MockClock) -> None:
    """ACP-171, ACP-173, C-033, T09, seed test 6: no second entry; after the vote a new id with the same request id."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen(session_id) as feed:
            first = await ask(client, feed, session_id)
        for _ in range(2):
            async with client.listen(session_id, cursor=1) as feed:
                assert (await anext(feed)).message == first.message
        await client.respond(first.message["id"], result=SELECT_A)
        async with client.listen(session_id, cursor=1) as feed:
            frames = await feed.until_kind("replay_complete")
            again = frames[0]
            assert again.message["id"] != first.message["id"]
            assert request_id(again) == request_id(first)
            assert said(place.session(session_id)) == ["answer: a"]
            # A vote on the replayed one has no effect besides the notice.
            await client.respond(again.message["id"], result={"outcome": {"outcome": "selected", "optionId": "b"}})
            notice = (await feed.until_kind("permission_already_resolved"))[-1].message["params"]["data"]
            assert notice["outcome"] == {"outcome": "selected", "optionId": "a"}
        assert said(place.session(session_id)) == ["answer: a"]


def test_one_entry_per_request() -> None:
    """ACP-171."""
    questions = Questions("c")
    first = questions.outbound_id("s", "r")
    assert questions.outbound_id("s", "r") == first
    assert questions.outbound_id("other", "r") != first
    assert len(questions) == 2
    taken = questions.take(first)
    assert taken is not None
    assert (taken.session_id, taken.request_id) == ("s", "r")
    assert questions.take(first) is None
    assert questions.outbound_id("s", "r") != first
    assert questions.forget_session("s") == ["r"]
    assert len(questions) == 1


def test_entries_are_bounded() -> None:
    """ACP-173: residual entries are kept until teardown, and not without end."""
    questions = Questions("c")
    ids = [questions.outbound_id("s", str(number)) for number in range(KEPT + 10)]
    assert len(questions) == KEPT
    assert questions.take(ids[0]) is None
    assert questions.take(ids[-1]) is not None


@pytest.mark.parametrize("id", [1, 1.5, None, True, ["x"], "_qwen_perm_c_2", "1"])
def test_foreign_answers_match_nothing(id: Any) -> None:
    """ACP-053, ACP-172: only strings we made."""
    questions = Questions("c")
    questions.outbound_id("s", "r")
    assert questions.take(id if not isinstance(id, list) else str(id)) is None


# Vote 1


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ({"result": SELECT_A}, "answer: a"),
        ({"result": {**SELECT_A, "answers": {"q": "yes"}, "_meta": {"k": 1}}}, "answer: a"),
        ({"result": CANCELLED}, "answer: None"),
        ({"error": {"code": -32000, "message": "no"}}, "answer: None"),
        ({"result": {"outcome": {"outcome": "selected", "optionId": "c"}}}, "answer: None"),
        ({"result": {"outcome": {"outcome": "selected", "optionId": ""}}}, "answer: None"),
        ({"result": {"outcome": "selected"}}, "answer: None"),
        ({"result": None}, "answer: None"),
        ({"result": {**SELECT_A, "answers": {"q": 5}}}, "answer: None"),
    ],
)
async def test_vote_by_response(autojump_clock: MockClock, answer: dict[str, Any], outcome: str) -> None:
    """ACP-174, C-037: an error counts as cancelled, and so does an answer that is no vote."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen(session_id) as feed:
            frame = await ask(client, feed, session_id)
            await client.respond(frame.message["id"], **answer)
            await feed.until_kind("turn_complete")
        assert said(place.session(session_id)) == [outcome]


@pytest.mark.parametrize(
    ("value", "vote"),
    [
        (SELECT_A, PermissionOutcome("a")),
        (CANCELLED, PermissionOutcome()),
        ({**CANCELLED, "_meta": {"a": 1}}, PermissionOutcome(meta={"a": 1})),
        ({}, None),
        ({"outcome": {}}, None),
        ({"outcome": {"outcome": "maybe"}}, None),
        ({**SELECT_A, "_meta": 5}, None),
        ({**SELECT_A, "answers": []}, None),
    ],
)
def test_parse_vote(value: dict[str, Any], vote: PermissionOutcome | None) -> None:
    """ACP-174."""
    assert parse_vote(value) == vote


async def test_vote_from_another_owner(autojump_clock: MockClock) -> None:
    """ACP-176, C-032: it counts, and the other owner learns of it."""
    async with acp_place() as place:
        a, b = await place.connect(), await place.connect()
        session_id = await a.new_session()
        await b.result("session/load", {"sessionId": session_id})
        async with a.listen(session_id) as at_a, b.listen(session_id) as at_b:
            asked_a = await ask(a, at_a, session_id)
            asked_b = (await at_b.until_kind("session/request_permission"))[-1]
            assert asked_a.message["id"] != asked_b.message["id"]
            await b.respond(asked_b.message["id"], result=SELECT_A)
            await at_a.until_kind("permission_resolved")
        await wait_all_tasks_blocked()
        assert said(place.session(session_id)) == ["answer: a"]


async def test_the_outbound_id_of_another_connection_is_nothing(autojump_clock: MockClock) -> None:
    """ACP-176, C-038: answers of those who were not asked are dropped."""
    async with acp_place() as place:
        owner, stranger = await place.connect(), await place.connect()
        session_id = await owner.new_session()
        async with owner.listen(session_id) as feed:
            frame = await ask(owner, feed, session_id)
            await stranger.respond(frame.message["id"], result=SELECT_A)
            await wait_all_tasks_blocked()
            assert len(place.session(session_id).permissions.pending) == 1


# Vote 2


async def vote(client: AcpClient, **params: Any) -> dict[str, Any]:
    return await client.ask("session/permission", params)


async def test_a_vote_by_request_ends_the_question_too(autojump_clock: MockClock) -> None:
    """ACP-171, ACP-173: asked with one id until the vote, by whichever way; a replay after it asks with a new one."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen(session_id) as feed:
            shown = await ask(client, feed, session_id, 31)
        async with client.listen(session_id, cursor=0) as feed:
            again = (await feed.until_kind("session/request_permission"))[-1]
            assert again.message["id"] == shown.message["id"]
            answer = await vote(client, requestId=request_id(shown), **SELECT_A)
            assert answer["result"] == {}
            await feed.until_kind("turn_complete")
        async with client.listen(session_id, cursor=0) as feed:
            replayed = (await feed.until_kind("session/request_permission"))[-1]
            assert request_id(replayed) == request_id(shown)
            assert replayed.message["id"] != shown.message["id"]


async def test_vote_by_request(autojump_clock: MockClock) -> None:
    """ACP-175, T09: with and without the session; the answer is on the connection stream."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen(session_id) as feed:
            frame = await ask(client, feed, session_id, 31)
            answer = await vote(client, sessionId=session_id, requestId=request_id(frame), **SELECT_A)
            assert answer["result"] == {}
            frame = await ask(client, feed, session_id, 32)
            answer = await vote(client, requestId=request_id(frame), **SELECT_A)
            assert answer["result"] == {}
            await feed.until_kind("turn_complete")
        assert said(place.session(session_id)) == ["answer: a", "answer: a"]


async def test_vote_errors(autojump_clock: MockClock) -> None:
    """The table of ACP-175, C-034, C-037, C-038: the request stays open until a vote that counts."""
    async with acp_place() as place:
        client, stranger = await place.connect(), await place.connect()
        session_id, other = await client.new_session(), await client.new_session()
        async with client.listen(session_id) as feed:
            frame = await ask(client, feed, session_id, 31)
            request = request_id(frame)
            cases: list[tuple[AcpClient, dict[str, Any], int, Any]] = [
                (client, {}, 400, "`requestId` is required"),
                (client, {"requestId": 5, **SELECT_A}, 400, "`requestId` is required"),
                (client, {"requestId": request}, 400, None),
                (client, {"requestId": request, "outcome": {"outcome": "selected", "optionId": ""}}, 400, None),
                (client, {"requestId": request, "outcome": {"outcome": "selected", "optionId": "c"}}, 400, None),
                (client, {"requestId": request, "outcome": {"outcome": "selected", "optionId": "__cancelled__"}}, 400, None),
                (client, {"requestId": request, "sessionId": other, **SELECT_A}, 409, None),
                (client, {"requestId": "random", "sessionId": other, **SELECT_A}, 404, "No pending permission request"),
                (client, {"requestId": "random", **SELECT_A}, 404, "No pending permission request"),
                (stranger, {"requestId": request, **SELECT_A}, 404, "No pending permission request"),
                (stranger, {"requestId": "random", **SELECT_A}, 404, "No pending permission request"),
                (stranger, {"requestId": request, "sessionId": session_id, **SELECT_A}, 403, "Session not owned by this connection"),
                (stranger, {"requestId": "random", "sessionId": session_id, **SELECT_A}, 403, "Session not owned by this connection"),
                (client, {"requestId": request, "sessionId": 5, **SELECT_A}, 403, None),
            ]  # fmt: skip
            for who, params, status, message in cases:
                error = (await vote(who, **params))["error"]
                assert (error["code"], error["data"]["httpStatus"]) == (-32602, status), params
                if message is not None:
                    assert error["message"] == message
            invalid = (await vote(client, requestId=request, outcome={"outcome": "selected", "optionId": "c"}))["error"]
            assert invalid["data"]["code"] == "invalid_option_id"
            assert len(place.session(session_id).permissions.pending) == 1
            assert (await vote(client, requestId=request, **SELECT_A))["result"] == {}
            late = (await vote(client, requestId=request, **SELECT_A))["error"]
            assert (late["code"], late["data"]["httpStatus"]) == (-32602, 409)
            await feed.until_kind("permission_already_resolved")
        assert said(place.session(session_id)) == ["answer: a"]


async def test_both_ways_and_rest_are_one_mediator(autojump_clock: MockClock) -> None:
    """REST-105, T09: seen here, answered there."""
    import msgspec

    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen(session_id) as feed:
            frame = await ask(client, feed, session_id)
            reply = await place.driver.request(
                "POST",
                f"/session/{session_id}/permission/{request_id(frame)}",
                body=msgspec.json.encode(SELECT_A),
                headers=[("Content-Type", "application/json")],
            )
            assert reply.status == 200
            await feed.until_kind("permission_resolved")
            # Late, by the outbound id: only the notice.
            await client.respond(frame.message["id"], result=CANCELLED)
            await feed.until_kind("permission_already_resolved")
        assert said(place.session(session_id)) == ["answer: a"]


async def test_cancel_answers_the_open_question(autojump_clock: MockClock) -> None:
    """ACP-179, C-036."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen(session_id) as feed:
            frame = await ask(client, feed, session_id, 31)
            await client.notify("session/cancel", {"sessionId": session_id})
            frames = await feed.until_kind("turn_complete")
            order = [each.kind for each in frames]
            assert order.index("permission_resolved") < order.index("reply:31") < order.index("turn_complete")
            assert (
                next(each for each in frames if each.kind == "reply:31").message["result"]["stopReason"] == "cancelled"
            )
            await client.respond(frame.message["id"], result=SELECT_A)
            await feed.until_kind("permission_already_resolved")


async def test_opposite_votes_at_once(autojump_clock: MockClock) -> None:
    """C-039: 100 rounds; one answer reaches the agent, and both are told the same."""
    async with acp_place() as place:
        a, b = await place.connect(), await place.connect()
        session_id = await a.new_session()
        await b.result("session/load", {"sessionId": session_id})
        session = place.session(session_id)
        winners = set()
        async with a.listen(session_id, window=1000) as at_a, b.listen(session_id, window=1000) as at_b:
            for number in range(100):
                await a.prompt(session_id, "ask", id=number)
                asked = [(await feed.until_kind("session/request_permission"))[-1] for feed in (at_a, at_b)]
                votes = (SELECT_A, {"outcome": {"outcome": "selected", "optionId": "b"}})
                async with trio.open_nursery() as nursery:
                    for who, frame, choice in zip((a, b), asked, votes, strict=True):
                        nursery.start_soon(_respond, who, frame.message["id"], choice)
                told = [
                    next(
                        frame.message["params"]["data"]["outcome"]["optionId"]
                        for frame in await feed.until_kind("turn_complete")
                        if frame.kind in ("permission_resolved", "permission_already_resolved")
                    )
                    for feed in (at_a, at_b)
                ]
                await wait_all_tasks_blocked()
                assert told[0] == told[1]
                assert said(session)[-1] == f"answer: {told[0]}"
                winners.add(told[0])
        assert len(said(session)) == 100
        assert winners == {"a", "b"}


async def _respond(client: AcpClient, id: Any, result: Any) -> None:
    await client.respond(id, result=result)


async def test_two_sessions_ask_apart(autojump_clock: MockClock) -> None:
    """C-035: an open question of one session does not hold up another."""
    async with acp_place() as place:
        client = await place.connect()
        one, two = await client.new_session(), await client.new_session()
        async with client.listen(one) as at_one, client.listen(two) as at_two:
            await ask(client, at_one, one, 1)
            frame = await ask(client, at_two, two, 2)
            await client.respond(frame.message["id"], result=SELECT_A)
            await at_two.until_kind("reply:2")
        assert said(place.session(two)) == ["answer: a"]
        assert len(place.session(one).permissions.pending) == 1


async def test_too_many_questions(autojump_clock: MockClock) -> None:
    """ACP-179: the one over the bound is answered cancelled."""
    async with acp_place(max_pending_permissions=1) as place:
        client = await place.connect()
        session_id = await client.new_session()
        session = place.session(session_id)
        async with client.listen(session_id) as feed:
            await ask(client, feed, session_id)
            outcome = await session.ask_permission({"toolCallId": "t"}, [{"optionId": "a"}])
            assert outcome.cancelled


# Policies


async def policy_place(place: Place, policy: PermissionPolicy) -> tuple[AcpClient, AcpClient, str]:
    a, b = await place.connect(), await place.connect()
    session_id = await a.new_session()
    await b.result("session/load", {"sessionId": session_id})
    place.session(session_id).permissions.policy = policy
    return a, b, session_id


async def test_designated(autojump_clock: MockClock) -> None:
    """ACP-175 403, REST-104: only the prompt's author."""
    async with acp_place() as place:
        a, b, session_id = await policy_place(place, PermissionPolicy.DESIGNATED)
        async with a.listen(session_id) as feed, b.listen(session_id) as at_b:
            frame = await ask(a, feed, session_id)
            error = (await vote(b, requestId=request_id(frame), **SELECT_A))["error"]
            assert error["code"] == -32602
            assert error["data"]["httpStatus"] == 403
            assert error["data"]["code"] == "permission_forbidden"
            assert error["data"]["reason"] == "designated_mismatch"
            theirs = (await at_b.until_kind("session/request_permission"))[-1]
            await b.respond(theirs.message["id"], result=SELECT_A)
            await wait_all_tasks_blocked()
            assert len(place.session(session_id).permissions.pending) == 1
            await a.respond(frame.message["id"], result=SELECT_A)
            await feed.until_kind("permission_resolved")


async def test_quorum(autojump_clock: MockClock) -> None:
    """ACP-177: a vote removes only the voter's own entry; the second equal one decides."""
    async with acp_place() as place:
        a, b, session_id = await policy_place(place, PermissionPolicy.CONSENSUS)
        async with a.listen(session_id) as at_a, b.listen(session_id) as at_b:
            mine = await ask(a, at_a, session_id)
            theirs = (await at_b.until_kind("session/request_permission"))[-1]
            await a.respond(mine.message["id"], result=SELECT_A)
            await at_a.until_kind("permission_partial_vote")
            await b.respond(theirs.message["id"], result=SELECT_A)
            await at_a.until_kind("permission_resolved")


async def test_local_only(autojump_clock: MockClock) -> None:
    """ACP-064, REST-104: the loopback bit is that of the initialize peer."""
    from tests.support.asgi import Driver

    async with acp_place() as place:
        a, _, session_id = await policy_place(place, PermissionPolicy.LOCAL_ONLY)
        far = Driver(place.driver._app, place.driver._nursery, client="192.0.2.7")
        remote = await AcpClient.connect(far)
        await remote.result("session/load", {"sessionId": session_id})
        async with a.listen(session_id) as feed:
            frame = await ask(a, feed, session_id)
            error = (await vote(remote, requestId=request_id(frame), **SELECT_A))["error"]
            assert error["data"]["reason"] == "remote_not_allowed"
            assert (await vote(a, requestId=request_id(frame), **SELECT_A))["result"] == {}


async def test_withdrawing_a_question(autojump_clock: MockClock) -> None:
    """The engine's side of ACP-143: one open request, and only that."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        session = place.session(session_id)
        async with client.listen(session_id) as feed:
            frame = await ask(client, feed, session_id)
            assert session.permissions.withdraw("another") is False
            assert session.permissions.withdraw(request_id(frame)) is True
            assert session.permissions.withdraw(request_id(frame)) is False
            await feed.until_kind("turn_complete")
        assert said(session) == ["answer: None"]
