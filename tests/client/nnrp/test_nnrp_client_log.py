"""nnrp-wire 14: both sides log; this is the client's."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import trio

from client.nnrp import NnrpCacheRefused, NnrpOperationEnded, SubmitOptions, open_nnrp, probe_transports
from client.nnrp.observing import logged
from protocol.nnrp.enums import (
    CloseReason,
    ErrorScope,
    FlowScope,
    MessageType,
    SessionFlags,
    UpdateReason,
)
from protocol.nnrp.machines.events import Event, MigrateAnswered
from protocol.nnrp.machines.migration import MigrationEffect
from protocol.nnrp.messages import (
    CacheInvalidate,
    Error,
    FlowUpdate,
    ResultHint,
    SessionClose,
    SessionMigrateAck,
)
from protocol.nnrp.packet import decode_packet
from server.nnrp import PAUSE
from tests.client.nnrp.test_nnrp_bad_servers import Server
from tests.client.nnrp.test_nnrp_retry import LATER, connected
from tests.support.nnrp import raw, serving_nnrp


class Lines:
    """The lines of the client's log, as facts by name."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def of(self, kind: str) -> list[dict[str, str]]:
        lines = [each.getMessage().split() for each in self._caplog.records if each.name == "moorline.client"]
        return [dict(word.split("=", 1) for word in line[1:]) for line in lines if line[0] == f"nnrp_{kind}"]

    def one(self, kind: str, *names: str) -> tuple[str, ...]:
        (facts,) = self.of(kind)
        return tuple(facts[each] for each in names)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    caplog.set_level(logging.DEBUG, "moorline.client")
    return Lines(caplog)


async def test_an_operation_with_our_server(lines: Lines) -> None:
    """Tags and leases of the session, times and state of every result under its trace_id, how a close went."""
    async with serving_nnrp() as served, open_nnrp(served.url) as connection:
        session = await connection.open_session(lease_ttl_ms=9000)
        submission = await session.submit(b"sleep=40;partial=2;x", options=SubmitOptions(trace_id=77))
        assert (await submission.result()).final
        cancelled = await session.submit(b"sleep=60000;", options=SubmitOptions(trace_id=78))
        cancelled.cancel()
        with pytest.raises(NnrpOperationEnded):
            await cancelled.result()
        await session.close()
        tag = str(session.machine.terms.server_session_tag)
    opened = lines.one("session_open_ack", "session", "session_status", "server_session_tag", "lease_ttl_ms")
    assert opened == ("1", "opened", tag, "9000")
    *parts, last = lines.of("result_push")
    assert {(each["trace"], each["operation_state"], each["result_class"]) for each in parts} == {
        ("77", "partial", "partial")
    }
    assert (last["trace"], last["frame"], last["operation_state"]) == ("77", "1", "completed")
    assert int(last["server_total_ms"]) >= int(last["inference_ms"]) >= 40
    assert lines.one("result_drop", "trace", "operation_state") == ("78", "cancelled")
    assert lines.one("session_close_ack", "close_status", "last_operation_id") == ("closed", "2")


async def test_flow_and_cache_with_our_server(lines: Lines) -> None:
    """Reason, level and epoch of FLOW_UPDATE, and whether it was news; what CACHE_ACK grants or refuses, and with which code."""
    async with serving_nnrp() as served, open_nnrp(served.url) as connection:
        session = await connection.open_session()
        await session.cache.put((3, 4), b"object", ttl_ms=5000)
        other = await connection.open_session(flags=SessionFlags(0))
        with pytest.raises(NnrpCacheRefused):
            await other.cache.put((3, 5), b"object")
        held = next(each for each in served.service.sessions if each.machine.session_id == session.session_id)
        served.service.order_flow(PAUSE, held)
        await served.wait_until(lambda: session.machine.hold() is not None)
    stored, refused = lines.of("cache_ack")
    assert (stored["cache_key_hi"], stored["cache_key_lo"], stored["status"]) == ("3", "4", "accepted")
    assert (stored["accepted_ttl_ms"], stored["detail_code"]) == ("5000", "0")
    assert (refused["status"], int(refused["detail_code"])) == ("rejected", 0x0001_0005)
    flow = lines.one(
        "flow_update", "session", "scope_kind", "update_reason", "backpressure_level", "credit_epoch", "applied"
    )
    assert flow == ("1", "session", "pause", "none", "1", "applied")


async def test_what_a_server_may_say(lines: Lines) -> None:
    """Hints, stale flow updates, invalidations, errors, a refused open, and a close of the server's with its tag."""
    said = [
        raw(ResultHint(retry_after_ms=5), session_id=1),
        raw(FlowUpdate(FlowScope.SESSION, UpdateReason.CONGESTION, credit_epoch=4), session_id=1),
        raw(FlowUpdate(FlowScope.SESSION, UpdateReason.GRANT, credit_epoch=3), session_id=1),
        raw(CacheInvalidate(cache_key_hi=3, reason_code=0x0003_0003), session_id=1),
        raw(Error(error_code=0x0B, error_scope=ErrorScope.SESSION, retry_after_ms=9), session_id=1),
        raw(SessionClose(CloseReason.IDLE_TIMEOUT, last_operation_id=5, session_close_tag=88), session_id=1),
    ]
    heard = trio.Event()

    async def script(server: Server) -> None:
        await server.greet()
        await server.open(LATER)
        await server.open()
        for each in said:
            await server.stream.send_all(each)
        await server.expect(MessageType.SESSION_CLOSE_ACK)
        heard.set()
        await server.rest()

    async with connected([script]) as connection:
        with pytest.raises(Exception, match="refused the session"):
            await connection.open_session()
        await connection.open_session()
        await heard.wait()
    assert [each["session_status"] for each in lines.of("session_open_ack")] == ["retry_later", "opened"]
    assert lines.one("result_hint", "retry_after_ms", "congestion_state") == ("5", "none")
    assert [(each["credit_epoch"], each["applied"]) for each in lines.of("flow_update")] == [
        ("4", "applied"),
        ("3", "stale"),
    ]
    assert lines.one("cache_invalidate", "invalidate_scope", "reason_code") == ("whole_session", str(0x0003_0003))
    assert lines.one("error", "error_code", "error_scope", "retry_after_ms") == ("11", "session", "9")
    closed = lines.one("session_close", "close_reason", "last_operation_id", "session_close_tag")
    assert closed == ("idle_timeout", "5", "88")


async def test_probes_with_their_timestamps(lines: Lines) -> None:
    async with serving_nnrp() as served:
        await probe_transports([served.url], samples=1, warm_up=False)
    sent, came = lines.one("transport_probe", "url", "client_send_ts_us"), lines.one("transport_probe_ack", "probe_id")
    assert sent[0] == served.url
    assert int(sent[1]) > 0
    assert came == ("1",)
    assert int(lines.one("transport_probe_ack", "server_recv_ts_us")[0]) > 0


async def test_a_migration_with_its_timestamp(lines: Lines) -> None:
    packet = decode_packet(raw(SessionMigrateAck(0, 7, 900, 123_456), session_id=1))
    seen: list[Event] = []
    logged(seen.append)(MigrateAnswered(None, packet, MigrationEffect.REBIND))
    assert len(seen) == 1
    answer = lines.one("session_migrate_ack", "session", "accept_code", "resume_from_frame_id", "server_migrate_ts_us")
    assert answer == ("1", "0", "7", "123456")


async def test_nobody_pays_for_a_log_that_nobody_reads(caplog: pytest.LogCaptureFixture) -> None:
    """Above debug a connection acts on its events as if there were no log."""
    caplog.set_level(logging.INFO, "moorline.client")
    seen: list[Event] = []
    act: Callable[[Event], None] = seen.append
    assert logged(act) is act
