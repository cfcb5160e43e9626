"""The NNRP client against the served side, over loopback sockets and over a cable that can be cut."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from client.nnrp import (
    NnrpConnectionLost,
    NnrpOperationEnded,
    NnrpOptions,
    NnrpRefused,
    NnrpSession,
    NnrpSessionOver,
    Submission,
    open_nnrp,
)
from client.nnrp.session import SubmitOptions
from protocol.nnrp.enums import (
    CancelScopeKind,
    OperationState,
    PayloadKind,
    SessionErrorCode,
)
from protocol.nnrp.machines.hello import HelloPolicy
from protocol.nnrp.machines.opening import OpenPolicy
from server.nnrp.policy import ServingPolicy, token_check
from server.nnrp.submit import Answer, Emit, Submit, text_payload
from sessions.operation import CancelReason
from tests.support.nnrp import Served, functions, serving_nnrp
from tests.support.nnrp_transports import EVERYWHERE, serving_on

LONG = b"sleep=60000;"


async def test_parts_then_the_final_result() -> None:
    """Issue 5, Client: submit → async iterator of results."""
    async with serving_nnrp() as served, open_nnrp(served.url) as connection:
        session = await connection.open_session()
        results = [each async for each in await session.submit(b"partial=3;abcdef")]
        assert b"".join(each.data for each in results) == b"partial=3;abcdef"
        assert [each.final for each in results] == [False, False, True]
        assert (await session.request(b"again")).text == "again"
        assert await connection.ping() < 5


async def test_an_operation_that_has_ended_keeps_nothing_that_was_sent() -> None:
    """A session with an operation tree knows a thousand of them, and none needs its payload any more."""
    async with serving_nnrp() as served, open_nnrp(served.url) as connection:
        session = await connection.open_session()
        submission = await session.submit(b"payload")
        assert submission.operation.attachment is not None
        await submission.result()
        assert session.machine.operations.get(submission.operation_id) is submission.operation
        assert submission.operation.attachment is None


async def test_how_an_operation_ends_without_a_result() -> None:
    """nnrp-wire 13.4: failed and cancelled are told apart; a cancelled wait cancels the operation."""
    async with serving_nnrp() as served, open_nnrp(served.url) as connection:
        session = await connection.open_session()
        with pytest.raises(NnrpOperationEnded) as failed:
            await session.request(b"fail;")
        assert failed.value.state is OperationState.FAILED
        assert failed.value.code == 0x000C
        submission = await session.submit(LONG)
        submission.cancel()
        with pytest.raises(NnrpOperationEnded) as cancelled:
            await submission.result()
        assert cancelled.value.state is OperationState.CANCELLED
        with trio.move_on_after(0.05):
            await session.request(LONG)
        await served.wait_until(lambda: served.service.statistics().operations == 0)
        assert session.in_flight in (0, 1)


async def test_cancel_by_scope() -> None:
    """C-062 through the client: group 9 is cancelled, the rest completes."""
    async with serving_nnrp() as served, open_nnrp(served.url) as connection:
        session = await connection.open_session()
        kept = await session.submit(b"sleep=100;kept")
        gone = [await session.submit(LONG, options=SubmitOptions(group_id=9)) for _ in range(2)]
        assert set(session.cancel(CancelScopeKind.GROUP, group_id=9)) == set(gone)
        for each in gone:
            with pytest.raises(NnrpOperationEnded):
                await each.result()
        assert (await kept.result()).data == b"sleep=100;kept"


async def test_supersede() -> None:
    """nnrp-extensions, Submit: the replaced operation ends superseded."""
    async with serving_nnrp() as served, open_nnrp(served.url) as connection:
        session = await connection.open_session()
        old = await session.submit(LONG)
        new = await session.submit(b"new", options=SubmitOptions(supersedes=old.operation_id))
        assert (await new.result()).data == b"new"
        with pytest.raises(NnrpOperationEnded) as ended:
            await old.result()
        assert ended.value.state is OperationState.SUPERSEDED


async def test_the_client_waits_for_credit_and_never_overruns() -> None:
    """Issue 5, Client: credit-aware. 40 submits at once with credit 3: the server refuses none."""
    running = highest = 0

    async def handler(submit: Submit, emit: Emit) -> Answer:
        nonlocal running, highest
        running += 1
        highest = max(highest, running)
        await trio.sleep(0.01)
        running -= 1
        return Answer(payloads=(text_payload(b"done", terminal=True),), kinds=PayloadKind.TOKEN_CHUNK)

    policy = ServingPolicy(opening=OpenPolicy(max_in_flight_operations=3, operation_credit=3))
    async with serving_nnrp(policy, functions(handler)) as served, open_nnrp(served.url) as connection:
        session = await connection.open_session()
        done = 0

        async def one() -> None:
            nonlocal done
            assert (await session.request(b"x")).data == b"done"
            done += 1

        async with trio.open_nursery() as nursery:
            for _ in range(40):
                nursery.start_soon(one)
        assert done == 40
        assert highest == 3
        assert served.service.violations == 0


@EVERYWHERE
async def test_connection_credit_is_shared_without_starvation(tmp_path: Path, transport: str) -> None:
    """C-080: four long operations of A fill the connection; B's first starts as soon as a place is free, although A has
    more waiting than B."""
    policy = ServingPolicy(hello=HelloPolicy(max_concurrent_frames=4))
    async with serving_on(transport, tmp_path, policy) as served, open_nnrp(served.url, served.options) as connection:
        a, b = await connection.open_session(), await connection.open_session()
        running = [await a.submit(LONG) for _ in range(4)]
        order: list[str] = []

        async def later(name: str, session: NnrpSession) -> None:
            submission = await session.submit(b"sleep=20;")
            order.append(name)
            await submission.result()

        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(later, "a", a)
            await trio.sleep(0.02)
            for _ in range(2):
                nursery.start_soon(later, "b", b)
            await trio.sleep(0.05)
            assert order == []
            # Place by place: tasks that are woken together run in any order.
            for freed, each in enumerate(running[:2], start=1):
                each.cancel()
                with trio.fail_after(2):
                    while len(order) < freed:  # noqa: ASYNC110  # what is waited for has no event
                        await trio.sleep(0.002)
            assert "b" in order[:2]
            for each in running[2:]:
                each.cancel()
        assert sorted(order) == ["a"] * 6 + ["b"] * 2
        assert served.service.violations == 0


@EVERYWHERE
async def test_results_find_the_right_waiter(tmp_path: Path, transport: str) -> None:
    """C-109: two sessions with equal frame ids; the server answers in reverse order with parts interleaved."""
    gates = {number: trio.Event() for number in range(3)}

    async def handler(submit: Submit, emit: Emit) -> Answer:
        text = bytes(submit.data()[0])
        number = int(text[-1:])

        def answer(part: bytes, terminal: bool) -> Answer:
            payload = text_payload(text + part, terminal=terminal, schema=(0x1001, 3))
            return Answer(payloads=(payload,), kinds=PayloadKind.TOKEN_CHUNK)

        for part in (b".0", b".1"):
            await emit.partial(answer(part, False))
            await trio.sleep(0.01)
        if number < 2:
            await gates[number + 1].wait()
        gates[number].set()
        return answer(b".2", True)

    async with (
        serving_on(transport, tmp_path, make_worker=functions(handler)) as served,
        open_nnrp(served.url, served.options) as connection,
    ):
        sessions = [await connection.open_session() for _ in range(2)]
        submissions: dict[bytes, Submission] = {}
        for number in range(3):
            for index, session in enumerate(sessions):
                text = b"s%d-%d" % (index, number)
                submissions[text] = await session.submit(text)
        for text, submission in submissions.items():
            assert [each.data async for each in submission] == [text + b".0", text + b".1", text + b".2"]


async def test_refusals_have_their_codes() -> None:
    """Hello refused for a wrong token; a session refused for its profile, and the connection goes on."""
    policy = ServingPolicy(authenticate=token_check("s3cret"), opening=OpenPolicy(profiles=frozenset({2})))
    async with serving_nnrp(policy) as served:
        with pytest.raises(NnrpRefused) as refused:
            async with open_nnrp(served.url, NnrpOptions(token="wrong")):
                pass
        assert refused.value.code == 2
        async with open_nnrp(served.url, NnrpOptions(token="s3cret")) as connection:
            with pytest.raises(NnrpRefused) as unsupported:
                await connection.open_session(profile_id=1, schema=(0, 0))
            assert unsupported.value.code == SessionErrorCode.PROFILE_UNSUPPORTED
            assert (await (await connection.open_session()).request(b"fine")).data == b"fine"


async def test_nobody_listens() -> None:
    async with serving_nnrp() as served:
        url = served.url
    with pytest.raises(NnrpConnectionLost):
        async with open_nnrp(url):
            pass


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:1", "is not one of tcp://"),
        ("tcp://", "and a host"),
        ("tcp:///path", "and a host"),
        ("127.0.0.1:4171", "is not one of tcp://"),
        ("tcp://127.0.0.1:99999", "Port out of range"),
    ],
)
async def test_urls_that_lead_nowhere(url: str, words: str) -> None:
    """Said at once, and not tried again."""
    with pytest.raises(NnrpConnectionLost, match=words):
        async with open_nnrp(url):
            pytest.fail("opened")


async def test_a_closed_session_refuses_and_its_sibling_goes_on() -> None:
    async with serving_nnrp() as served, open_nnrp(served.url) as connection:
        first, second = await connection.open_session(), await connection.open_session()
        running = await first.submit(b"sleep=60;last")
        await first.close(drain_timeout_ms=2000)
        assert (await running.result()).data == b"sleep=60;last"
        with pytest.raises(NnrpSessionOver):
            await first.submit(b"x")
        assert (await second.request(b"sibling")).data == b"sibling"


@pytest.mark.parametrize("dialect", ["nnrp-py", "nnrp-rs"])
async def test_the_other_dialects(dialect: str) -> None:
    """nnrp-wire 2.6: as either real peer's client would speak, against our own server."""
    options = NnrpOptions(dialect=dialect)  # type: ignore[arg-type]  # one of the literals
    async with serving_nnrp() as served, open_nnrp(served.url, options) as connection:
        session = await connection.open_session()
        assert (await session.request(b"hello")).data == b"hello"


@EVERYWHERE
async def test_a_client_that_is_cancelled_leaves_nothing_behind(tmp_path: Path, transport: str) -> None:
    """nnrp-wire 13.1: CLOSE is said then too, else the server would keep for its window what can be resumed, and carry on."""
    async with serving_on(transport, tmp_path) as place:
        with trio.CancelScope() as scope:
            async with open_nnrp(place.url, place.options) as connection:
                session = await connection.open_session(resumable=True)
                await session.submit(LONG)
                await place.wait_until(lambda: place.service.statistics().operations == 1)
                scope.cancel()
                await trio.sleep_forever()
        await place.wait_until(lambda: place.service.statistics().sessions == 0)


class Cable:
    """Dials for the client, and cuts what it dialled."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self.streams: list[trio.SocketStream] = []

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        stream = await trio.open_tcp_stream(host, port)
        self.streams.append(stream)
        return stream

    async def cut(self) -> None:
        await trio.aclose_forcefully(self.streams[-1])


async def test_a_lost_connection_is_resumed_and_nothing_is_lost_or_doubled() -> None:
    """Issue 5, Client: automatic resume. Cut ten times while 20 operations with parts run; every part once, in order."""
    async with serving_nnrp() as served:
        cable = Cable(served)
        options = NnrpOptions(connect=cable.connect)
        async with open_nnrp(served.url, options) as connection:
            session = await connection.open_session(resumable=True)
            got: dict[int, bytes] = {}

            async def one(number: int) -> None:
                text = b"sleep=%d;partial=5;operation %03d" % (20 * number, number)
                parts = [each.data async for each in await session.submit(text)]
                assert len(parts) == 5
                assert b"".join(parts) == text
                got[number] = text

            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(one, number)
                for _ in range(10):
                    await trio.sleep(0.04)
                    await cable.cut()
            assert len(got) == 20
            assert connection.reconnects >= 2
            assert session.in_flight == 0
            assert (await session.request(b"after")).data == b"after"
        assert served.service.statistics().operations == 0


async def test_a_session_that_cannot_be_resumed_ends_with_its_connection() -> None:
    async with serving_nnrp() as served:
        cable = Cable(served)
        async with open_nnrp(served.url, NnrpOptions(connect=cable.connect)) as connection:
            session = await connection.open_session()
            running = await session.submit(LONG)
            await cable.cut()
            with pytest.raises(NnrpConnectionLost):
                await running.result()
            with pytest.raises(NnrpConnectionLost):
                await session.submit(b"x")


async def test_a_session_that_cannot_come_back_is_over() -> None:
    """nnrp-wire 13.7 item 4: resume_rejected → the session is over, a fresh one is the caller's to open."""
    async with serving_nnrp() as served:
        cable = Cable(served)
        async with open_nnrp(served.url, NnrpOptions(connect=cable.connect)) as connection:
            session = await connection.open_session(resumable=True)
            running = await session.submit(LONG)
            (held,) = served.service.sessions
            served.service.end_session(held, CancelReason.OWNER_GONE)
            await cable.cut()
            with pytest.raises(NnrpSessionOver):
                await running.result()
            assert (await (await connection.open_session()).request(b"fresh")).data == b"fresh"
