"""What can be watched of turns, budgets, backpressure, cache and leases: metrics and log lines (nnrp-wire 14)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from client.nnrp import NnrpCacheRefused, NnrpOperationEnded, ObjectVersion, SubmitOptions, open_nnrp
from protocol.nnrp.enums import (
    BudgetPolicy,
    CloseReason,
    FlowScope,
    InvalidateScope,
    MessageType,
    PayloadKind,
    TransportId,
    UpdateReason,
)
from protocol.nnrp.messages import FlowUpdate, SessionClose, SessionMigrate, TransportProbe
from server.nnrp import PAUSE, NnrpService, SchedulingPolicy, ServingPolicy
from server.nnrp.submit import Answer, Emit, Submit, text_payload
from tests.support.nnrp import HELLO, OPEN, functions, serving_nnrp


def metrics(service: NnrpService) -> dict[str, float]:
    """Samples by name without prefix, with the value of a label behind it."""
    found = {}
    for metric in service.gauges():
        for sample in metric.samples:
            name = sample.name.removeprefix("moorline_nnrp_")
            found[" ".join([name, *sample.labels.values()])] = sample.value
    return found


def lines(logs: list[Any], event: str) -> list[Any]:
    return [each for each in logs if each["event"] == event]


async def until_released(submit: Submit, emit: Emit) -> Answer:
    text = bytes(submit.data()[0]) if submit.data() else b""
    if text == b"hold":
        await trio.sleep_forever()
    payload = text_payload(text, terminal=True, schema=(0x1001, 3))
    return Answer(payloads=(payload,), kinds=PayloadKind.TOKEN_CHUNK, profile_id=2)


async def test_turns_budgets_and_backpressure() -> None:
    """14: how many run, wait and have begun, by class; how budgets ended; the level, and every FLOW_UPDATE; a log line per
    change of level with the length of the queue."""
    policy = ServingPolicy(scheduling=SchedulingPolicy(slots=1, soft_waiting=2, hard_waiting=9, max_waiting=3))
    with capture_logs() as logs:
        async with serving_nnrp(policy, functions(until_released)) as served, open_nnrp(served.url) as connection:
            session = await connection.open_session()
            first = await session.submit(b"hold")
            drop = SubmitOptions(deadline_ms=60_000, budget_policy=BudgetPolicy.ALLOW_DROP)
            shed = await session.submit(b"hold", options=drop)
            waiting = [await session.submit(b"hold") for _ in range(3)]
            with pytest.raises(NnrpOperationEnded):
                await shed.result()
            now = metrics(served.service)
            assert (now["operations_running"], now["operations_waiting balanced"]) == (1, 3)
            assert (now["backpressure_level"], now["operations_shed_total"]) == (1, 1)
            assert now["flow_updates_total"] >= 1
            for each in (first, *waiting):
                each.cancel()
                await each.wait_over()
            late = await session.submit(b"hold", options=SubmitOptions(deadline_ms=30))
            with pytest.raises(NnrpOperationEnded):
                await late.result()
            now = metrics(served.service)
            assert now["budgets_spent_total drop"] == 1
            assert (now["operations_running"], now["operations_started_total balanced"]) == (0, 5)
            assert now["backpressure_level"] == 0
            served.service.order_flow(PAUSE)
    levels = [(each["level"], each["log_level"]) for each in lines(logs, "nnrp_backpressure")]
    assert levels == [("soft", "warning"), ("none", "info")]
    assert lines(logs, "nnrp_flow_ordered")[0]["reason"] == "pause"
    ended = lines(logs, "nnrp_operation_ended")[-1]
    assert (ended["state"], ended["code"]) == ("failed", 8)
    assert ended["total_ms"] >= 30


async def test_hits_misses_and_leases() -> None:
    """14: cache hits and misses, leases alive, expired and refused, those of sessions that are over included; who put what,
    what was granted or why not, and what was invalidated for which reason."""
    with capture_logs() as logs:
        async with serving_nnrp(make_worker=functions(until_released)) as served, open_nnrp(served.url) as connection:
            session = await connection.open_session()
            lease = await session.cache.put((0, 1), b"1234", version=ObjectVersion(object_id=1, version=2))
            short = await session.cache.put((0, 2), b"5", ttl_ms=1)
            with pytest.raises(NnrpCacheRefused):
                await session.cache.put((0, 1), b"old", version=ObjectVersion(object_id=1, version=1))
            await (await session.submit(b"x", options=SubmitOptions(objects=(lease,)))).result()
            await trio.sleep(0.01)
            with pytest.raises(NnrpOperationEnded):
                await (await session.submit(b"x", options=SubmitOptions(objects=(short,)))).result()
            now = metrics(served.service)
            assert (now["cache_leases"], now["cache_bytes"]) == (1, 4)
            seen = ("cache_hits_total", "cache_misses_total", "leases_expired_total", "cache_rejected_total")
            assert [now[each] for each in seen] == [1, 1, 1, 1]
            session.cache.invalidate(InvalidateScope.OBJECT_KEY, key=(0, 1), reason=0x0003_0003)
            await session.close()
            await served.wait_until(lambda: not served.service.sessions)
            now = metrics(served.service)
            assert (now["cache_leases"], now["cache_bytes"]) == (0, 0)
            assert [now[each] for each in seen] == [1, 1, 1, 1]
    puts = lines(logs, "nnrp_cache_put")
    assert [(each["key"], each["status"], each["detail"]) for each in puts] == [
        ("0/0/1", "accepted", ""),
        ("0/0/2", "accepted", ""),
        ("0/0/1", "rejected", "version_mismatch"),
    ]
    assert puts[0]["lease"] > 0
    assert [each["ttl_ms"] for each in puts] == [30_000, 1, 0]
    (gone,) = lines(logs, "nnrp_cache_invalidated")
    assert (gone["scope"], gone["reason"], gone["objects"]) == ("object_key", "version_mismatch", 1)


async def test_the_log_has_what_sessions_and_flow_are_called() -> None:
    """14: client_session_tag, server_session_tag, session_close_tag and route_scope_id; reason, level and epoch of every
    FLOW_UPDATE, in both directions; probes with their timestamps."""
    with capture_logs() as logs:
        async with serving_nnrp() as served, served.peer(hello=False) as peer:
            await peer.send(TransportProbe(7, 3, 1234), b"PPP")
            await peer.receive(MessageType.TRANSPORT_PROBE_ACK)
            await peer.send(HELLO)
            await peer.receive(MessageType.SERVER_HELLO_ACK)
            await peer.open(OPEN.replace(client_session_tag=77))
            (session,) = served.service.sessions
            assert served.service.order_flow(PAUSE, session)
            await peer.receive(MessageType.FLOW_UPDATE)
            update = FlowUpdate(scope_kind=FlowScope.SESSION, update_reason=UpdateReason.RESUME, credit_epoch=9)
            for _ in range(2):
                await peer.send(update, session_id=1)
            close = SessionClose(close_reason=CloseReason.CLIENT_SHUTDOWN, last_operation_id=5, session_close_tag=88)
            await peer.send(close, session_id=1)
            await peer.receive(MessageType.SESSION_CLOSE_ACK)
    (probe,), (opened,) = lines(logs, "nnrp_probe"), lines(logs, "nnrp_session_opened")
    assert (probe["probe"], probe["bytes"], probe["sent_us"]) == (7, 3, 1234)
    assert probe["received_us"] > 0
    assert (opened["session"], opened["client_tag"], opened["route_scope"]) == (1, 77, 0)
    (sent,), received = lines(logs, "nnrp_flow_sent"), lines(logs, "nnrp_flow_received")
    assert (sent["session"], sent["reason"], sent["level"], sent["epoch"]) == (1, "pause", "none", 1)
    assert [(each["reason"], each["epoch"], each["applied"]) for each in received] == [
        ("resume", 9, "applied"),
        ("resume", 9, "duplicate"),
    ]
    (closed,) = lines(logs, "nnrp_session_close")
    assert (closed["tag"], closed["close_tag"], closed["reason"]) == (opened["tag"], 88, "client_shutdown")
    assert closed["watermark"] == 5


async def test_the_log_says_which_dialect_was_chosen_and_why() -> None:
    """Issue 5, Dialects: one line when it is chosen, another when a peer that said hello turns out to be nnrp-py (2.6)."""
    with capture_logs() as logs:
        async with serving_nnrp() as served:
            async with served.peer(hello=False) as peer:
                await peer.send(HELLO.replace(requested_session_id=5))
                await peer.receive(MessageType.SERVER_HELLO_ACK)
                await peer.submit(1, session_id=5)
                await peer.receive(MessageType.RESULT_PUSH)
            async with served.peer(hello=False) as peer:
                await peer.open()
            async with served.peer(hello=False) as peer:
                await peer.send(SessionMigrate(TransportId.QUIC, TransportId.TCP), session_id=5)
                await peer.receive(MessageType.SESSION_MIGRATE_ACK)
    assert [(each["dialect"], each["because"]) for each in lines(logs, "nnrp_dialect")] == [
        ("native", "CLIENT_HELLO came first"),
        ("implicit", "a submit in the session of the hello, without SESSION_OPEN"),
        ("bare", "SESSION_OPEN came first"),
        ("implicit", "SESSION_MIGRATE came first"),
    ]
