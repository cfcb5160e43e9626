"""One question, one answer: acp-http.md 6, rest.md 7."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from sessions import Harbour, Limits, PermissionOutcome, PermissionPolicy, Session, Voter, VoteResult, open_harbour
from sessions.errors import InvalidOption, VoteForbidden
from tests.support.engine import events, quiet, said, submit, types
from tests.support.fake_runner import FakeRunner

YES = PermissionOutcome("a")


async def asking(harbour: Harbour, words: str = "ask") -> tuple[Session, str]:
    """A session with one reader and one open question."""
    opened = await harbour.create()
    opened.session.subscribe()
    submit(opened.session, words, client_id=opened.client_id)
    await quiet()
    (pending,) = opened.session.permissions.pending
    return opened.session, pending.request_id


async def test_asked_and_answered(harbour: Harbour) -> None:
    """REST-101, ACP-170: a numbered event, resolved once."""
    session, request_id = await asking(harbour)
    asked = events(session, "permission_request")[0].value()
    assert asked["requestId"] == request_id
    assert [option["optionId"] for option in asked["options"]] == ["a", "b"]
    assert session.permissions.vote(request_id, YES, Voter("client_x")) is VoteResult.RESOLVED
    await quiet()
    assert said(session) == ["answer: a"]
    resolved = events(session, "permission_resolved")[0]
    assert resolved.value() == {
        "requestId": request_id,
        "sessionId": session.id,
        "outcome": {"outcome": "selected", "optionId": "a"},
        "voterClientId": "client_x",
    }
    assert resolved.originator == "client_x", "REST-091"


async def test_second_vote_is_answered_and_not_forwarded(harbour: Harbour) -> None:
    """C-034, ACP-173: the recorded outcome is told, the agent hears nothing."""
    session, request_id = await asking(harbour)
    session.permissions.vote(request_id, YES, Voter())
    assert session.permissions.vote(request_id, PermissionOutcome("b"), Voter()) is VoteResult.ALREADY_RESOLVED
    await quiet()
    assert said(session) == ["answer: a"]
    told = events(session, "permission_already_resolved")[0].value()
    assert told["outcome"] == {"outcome": "selected", "optionId": "a"}
    assert session.permissions.outcome_of(request_id) == YES


@pytest.mark.parametrize("option", ["c", "", "__cancelled__"])
async def test_option_not_offered(harbour: Harbour, option: str) -> None:
    """C-037, REST-102: refused, still pending."""
    session, request_id = await asking(harbour)
    with pytest.raises(InvalidOption):
        session.permissions.vote(request_id, PermissionOutcome(option), Voter())
    assert session.permissions.vote(request_id, YES, Voter()) is VoteResult.RESOLVED


async def test_unknown_request(harbour: Harbour) -> None:
    session, _ = await asking(harbour)
    assert session.permissions.vote("nope", YES, Voter()) is VoteResult.NOT_PENDING


async def test_cancel_answers_the_question(harbour: Harbour) -> None:
    """C-036, ACP-179."""
    session, request_id = await asking(harbour)
    session.cancel_prompt()
    await quiet()
    assert session.permissions.pending == []
    assert session.permissions.outcome_of(request_id) == PermissionOutcome()
    assert session.permissions.vote(request_id, YES, Voter()) is VoteResult.ALREADY_RESOLVED
    ordered = types(session)
    assert ordered.index("permission_resolved") < ordered.index("turn_complete")


async def test_no_consumer_cancels(harbour: Harbour) -> None:
    """ACP-178: the agent goes on; a reader that shows events to nobody does not count."""
    session = (await harbour.create()).session
    session.subscribe(consumer=False)
    await submit(session, "ask").wait_settled()
    assert said(session) == ["answer: None"]
    assert events(session, "permission_request") == []


async def test_a_binding_in_grace_holds_the_question(harbour: Harbour) -> None:
    """ACP-148."""
    session = (await harbour.create()).session
    session.hold("binding")
    submit(session, "ask")
    await quiet()
    assert len(session.permissions.pending) == 1
    session.release("binding")
    assert not session.has_consumer()


async def test_one_session_does_not_block_another(harbour: Harbour) -> None:
    """C-035."""
    first, first_request = await asking(harbour)
    second, second_request = await asking(harbour)
    second.permissions.vote(second_request, YES, Voter())
    await quiet()
    assert said(second) == ["answer: a"]
    assert first.permissions.knows(first_request)
    assert not second.permissions.knows(first_request), "C-038"


async def test_too_many_pending(runner: FakeRunner) -> None:
    """ACP-179: the next is answered cancelled."""
    async with open_harbour(runner, workspaces=["/w"], limits=Limits(max_pending_permissions=2)) as harbour:
        session = (await harbour.create()).session
        session.subscribe()
        answers: list[PermissionOutcome] = []

        async def ask() -> None:
            answers.append(await session.ask_permission({}, [{"optionId": "a"}]))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
            await quiet()
            assert answers == [PermissionOutcome()]
            session.permissions.cancel()
        assert len(answers) == 3


async def test_timeout(runner: FakeRunner, autojump_clock: trio.testing.MockClock) -> None:
    """ACP-179."""
    async with open_harbour(runner, workspaces=["/w"], limits=Limits(permission_timeout=30)) as harbour:
        session, request_id = await asking(harbour)
        await trio.sleep(31)
        assert session.permissions.outcome_of(request_id) == PermissionOutcome()
        assert said(session) == ["answer: None"]


async def test_outcomes_are_remembered_in_a_bounded_memory(runner: FakeRunner) -> None:
    async with open_harbour(runner, workspaces=["/w"], limits=Limits(remembered_permissions=2)) as harbour:
        session = (await harbour.create()).session
        session.subscribe()
        requests = []
        for _ in range(3):
            operation = submit(session, "ask")
            await quiet()
            (pending,) = session.permissions.pending
            requests.append(pending.request_id)
            session.permissions.vote(pending.request_id, YES, Voter())
            await operation.wait_settled()
        assert [session.permissions.knows(each) for each in requests] == [False, True, True]


def policed(runner: FakeRunner, policy: PermissionPolicy):  # type: ignore[no-untyped-def]  # a context manager of ours
    return open_harbour(runner, workspaces=["/w"], permission_policy=policy)


async def test_local_only(runner: FakeRunner) -> None:
    """REST-104, REST-102: the refusal is published, the question stays."""
    async with policed(runner, PermissionPolicy.LOCAL_ONLY) as harbour:
        session, request_id = await asking(harbour)
        with pytest.raises(VoteForbidden) as caught:
            session.permissions.vote(request_id, YES, Voter(local=False))
        assert caught.value.reason == "remote_not_allowed"
        assert types(session)[-1] == "permission_forbidden"
        assert session.permissions.vote(request_id, YES, Voter(local=True)) is VoteResult.RESOLVED


async def test_designated(runner: FakeRunner) -> None:
    """REST-104: only the prompt's author decides."""
    async with policed(runner, PermissionPolicy.DESIGNATED) as harbour:
        session, request_id = await asking(harbour)
        author = next(iter(session.clients))
        with pytest.raises(VoteForbidden) as caught:
            session.permissions.vote(request_id, YES, Voter("client_other"))
        assert caught.value.reason == "designated_mismatch"
        assert session.permissions.vote(request_id, YES, Voter(author)) is VoteResult.RESOLVED


async def test_consensus(runner: FakeRunner) -> None:
    """REST-104: two equal votes decide; a voter who changes their mind counts once."""
    async with policed(runner, PermissionPolicy.CONSENSUS) as harbour:
        session, request_id = await asking(harbour)
        votes = [("x", "a"), ("x", "b"), ("y", "a")]
        for voter, option in votes:
            result = session.permissions.vote(request_id, PermissionOutcome(option), Voter(voter))
            assert result is VoteResult.RECORDED
        partial = events(session, "permission_partial_vote")[-1].value()
        assert partial["votesReceived"] == 2
        assert partial["optionTallies"] == {"b": 1, "a": 1}
        assert session.permissions.vote(request_id, PermissionOutcome("b"), Voter("y")) is VoteResult.RESOLVED
        assert session.permissions.outcome_of(request_id) == PermissionOutcome("b")


async def test_opposite_votes_at_the_same_instant(harbour: Harbour) -> None:
    """C-039: one winner, told to both."""
    for _ in range(20):
        session, request_id = await asking(harbour)
        results: list[VoteResult] = []

        async def vote(option: str, session: Session = session, request_id: str = request_id) -> None:
            results.append(session.permissions.vote(request_id, PermissionOutcome(option), Voter()))  # noqa: B023 - run below

        async with trio.open_nursery() as nursery:
            nursery.start_soon(vote, "a")
            nursery.start_soon(vote, "b")
        assert sorted(each.value for each in results) == ["already_resolved", "resolved"]
        await quiet()
        outcome = session.permissions.outcome_of(request_id)
        assert outcome is not None
        assert said(session) == [f"answer: {outcome.option_id}"]
        await session.close()
