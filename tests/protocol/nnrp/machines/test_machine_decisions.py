"""The pure decisions: hello, session opening, resume, migration, patch (nnrp-wire 7.1 – 7.4, 7.8, 13.2, 13.7, 13.9)."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from protocol.nnrp.enums import (
    AckStatus,
    ErrorCode,
    PatchMask,
    PatchRejectReason,
    PayloadKind,
    PriorityClass,
    SchemaFlags,
    SessionErrorCode,
    SessionFlags,
    SessionFlagsAck,
    SessionStatus,
)
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.machines.hello import HelloPolicy, check_hello_ack, negotiate
from protocol.nnrp.machines.migration import (
    Migration,
    MigrationAnswer,
    MigrationEffect,
    MigrationRefusal,
    PathState,
    decide_migration,
)
from protocol.nnrp.machines.opening import (
    OpenDecision,
    OpenPolicy,
    OpenVerdict,
    answer_message,
    check_answer,
    decide_open,
    terms_of_answer,
)
from protocol.nnrp.machines.patching import PatchPolicy, SessionSettings, apply_answer, decide_patch
from protocol.nnrp.machines.resume import (
    Redelivery,
    Resumable,
    ResumeDecision,
    ResumeOutcome,
    ResumeRefusal,
    ResumeRequest,
    classify_answer,
    decide_resume,
)
from protocol.nnrp.machines.schemas import Schema, SchemaRegistry, builtin_registry
from protocol.nnrp.messages import SessionOpen, SessionOpenAck, SessionPatch
from tests.protocol.nnrp.machines.duo import HELLO

CODE = SessionErrorCode
OPEN = SessionOpen(
    requested_session_id=42,
    profile_id=2,
    session_flags=SessionFlags(5),
    schema_id=0x1001,
    schema_version=3,
    default_deadline_ms=500,
    max_in_flight_operations=4,
    client_session_tag=7,
)
POLICY = OpenPolicy(max_in_flight_operations=4, operation_credit=2)


def decide(request: SessionOpen = OPEN, policy: OpenPolicy = POLICY, **given: Any) -> OpenDecision:
    given.setdefault("schemas", builtin_registry())
    given.setdefault("present", {})
    given.setdefault("session_count", 0)
    given.setdefault("assign", lambda: 77)
    return decide_open(request, policy, **given)


# Opening


def test_opened_with_what_was_asked() -> None:
    decision = decide()
    assert (decision.status, decision.session_id, decision.code) == (SessionStatus.OPENED, 42, 0)
    terms = decision.terms
    assert terms is not None
    assert (terms.granted_operation_credit, terms.max_in_flight_operations) == (2, 4)
    assert terms.flags == 5
    assert terms.resume_window_ms == 120_000
    assert terms.lease_ttl_ms == 30_000


@pytest.mark.parametrize(
    ("request_", "given", "code"),
    [
        (OPEN.replace(profile_id=9), {}, CODE.PROFILE_UNSUPPORTED),
        (OPEN.replace(schema_version=4), {}, CODE.SCHEMA_UNSUPPORTED),
        (OPEN.replace(profile_id=1), {}, CODE.SCHEMA_UNSUPPORTED),
        (OPEN, {"hook": lambda _: OpenVerdict(CODE.AUTH_FAILED)}, CODE.AUTH_FAILED),
        (OPEN, {"hook": lambda _: OpenVerdict(CODE.PRIORITY_REJECTED)}, CODE.PRIORITY_REJECTED),
        (OPEN.replace(resume_token_bytes=4), {}, CODE.RESUME_REJECTED),
        (OPEN, {"present": {42}}, CODE.SESSION_LIMIT_REACHED),
        (OPEN, {"session_count": 65_535}, CODE.SESSION_LIMIT_REACHED),
    ],
)
def test_refusals(request_: SessionOpen, given: dict[str, Any], code: SessionErrorCode) -> None:
    """nnrp-wire 13.2 and 12.6."""
    decision = decide(request_, **given)
    assert (decision.status, decision.code, decision.terms) == (SessionStatus.REJECTED, code, None)


def test_the_order_of_the_decision() -> None:
    """nnrp-wire 13.2: profile, schema, (clamp), hook, resume, identity: each fault is reported before the next."""
    asked: list[str] = []

    def hook(_: SessionOpen) -> OpenVerdict:
        asked.append("hook")
        return OpenVerdict(CODE.AUTH_FAILED)

    def resume() -> ResumeDecision:
        asked.append("resume")
        return ResumeDecision(refusal=ResumeRefusal.WRONG_TOKEN)

    everything = OPEN.replace(profile_id=9, schema_version=4, resume_token_bytes=4)
    given: dict[str, Any] = {"present": {42}, "session_count": 65_535, "hook": hook, "resume": resume}
    assert decide(everything, **given).code == CODE.PROFILE_UNSUPPORTED
    assert decide(everything.replace(profile_id=2), **given).code == CODE.SCHEMA_UNSUPPORTED
    assert asked == []
    rest = everything.replace(profile_id=2, schema_version=3)
    assert decide(rest, **given).code == CODE.AUTH_FAILED
    assert asked == ["hook"]
    del given["hook"]
    assert decide(rest, **given).code == CODE.RESUME_REJECTED
    assert asked == ["hook", "resume"]
    assert decide(rest.replace(resume_token_bytes=0), **given).code == CODE.SESSION_LIMIT_REACHED


def test_too_much_is_clamped_not_refused() -> None:
    """nnrp-wire 18 item 33."""
    terms = decide(OPEN.replace(max_in_flight_operations=60_000, lease_ttl_hint_ms=0xFFFF_FFFF)).terms
    assert terms is not None
    assert terms.max_in_flight_operations == 4
    assert terms.lease_ttl_ms == POLICY.max_lease_ttl_ms
    small = decide(OPEN.replace(max_in_flight_operations=1)).terms
    assert small is not None
    assert (small.max_in_flight_operations, small.granted_operation_credit) == (1, 1)
    unspecified = decide(OPEN.replace(max_in_flight_operations=0)).terms
    assert unspecified is not None
    assert unspecified.max_in_flight_operations == 4


def test_no_default_schema_is_fine() -> None:
    """nnrp-wire 18 item 32."""
    assert decide(OPEN.replace(schema_id=0, schema_version=0)).status is SessionStatus.OPENED
    assert decide(OPEN.replace(profile_id=0, schema_id=0, schema_version=0)).status is SessionStatus.OPENED


def test_a_schema_that_is_not_bindable_is_unsupported() -> None:
    """nnrp-wire 11.2."""
    schemas = SchemaRegistry(builtin_registry())
    schemas.install(Schema(0x2001, 1, 2, 5))
    schemas.install(Schema(0x2002, 1, 2, 5, int(SchemaFlags.DEFAULT_BINDABLE)))
    asked = OPEN.replace(schema_id=0x2001, schema_version=1)
    assert decide(asked, schemas=schemas).code == CODE.SCHEMA_UNSUPPORTED
    assert decide(asked.replace(schema_id=0x2002), schemas=schemas).status is SessionStatus.OPENED


def test_id_zero_is_assigned() -> None:
    assert decide(OPEN.replace(requested_session_id=0)).session_id == 77


def test_retry_later() -> None:
    decision = decide(hook=lambda _: OpenVerdict(CODE.SESSION_LIMIT_REACHED, retry_later=True))
    assert (decision.status, decision.code) == (SessionStatus.RETRY_LATER, CODE.SESSION_LIMIT_REACHED)


@pytest.mark.parametrize(
    ("policy", "verdict"),
    [
        (attrs.evolve(POLICY, highest_priority=PriorityClass.BALANCED), OpenVerdict()),
        (POLICY, OpenVerdict(priority=PriorityClass.BALANCED)),
    ],
)
def test_a_downgrade_is_said(policy: OpenPolicy, verdict: OpenVerdict) -> None:
    """nnrp-wire 13.5: the server must say so explicitly in the ACK."""
    request = OPEN.replace(priority_class=PriorityClass.INTERACTIVE)
    terms = decide(request, policy, hook=lambda _: verdict).terms
    assert terms is not None
    assert terms.priority is PriorityClass.BALANCED
    assert terms.flags & SessionFlagsAck.PRIORITY_DOWNGRADED
    plain = decide(OPEN.replace(priority_class=PriorityClass.BACKGROUND), policy).terms
    assert plain is not None
    assert not plain.flags & SessionFlagsAck.PRIORITY_DOWNGRADED


@pytest.mark.parametrize("flags", range(16))
def test_flags_are_acknowledged_only_when_asked(flags: int) -> None:
    """nnrp-wire 7.8: flags_ack ⊆ requested, and resume goes with a window."""
    terms = decide(OPEN.replace(session_flags=SessionFlags(flags))).terms
    assert terms is not None
    assert terms.flags == flags
    assert (terms.resume_window_ms > 0) == bool(flags & 1)
    closed = decide(OPEN.replace(session_flags=SessionFlags(flags)), attrs.evolve(POLICY, resume_window_ms=0)).terms
    assert closed is not None
    assert closed.flags == flags & ~1


def test_features_are_the_intersection() -> None:
    """nnrp-extensions Negotiation."""
    policy = attrs.evolve(POLICY, features=0b00110)
    terms = decide(policy=policy, features=0b00011).terms
    assert terms is not None
    assert terms.features == 0b00010
    none = decide().terms
    assert none is not None
    assert none.features == 0


def test_a_refusal_carries_zeros() -> None:
    """nnrp-wire 18 items 8 and 9."""
    message = answer_message(decide(present={42}), b"", 0)
    assert message == SessionOpenAck(
        session_status=SessionStatus.REJECTED, session_error_code=int(CODE.SESSION_LIMIT_REACHED)
    )


ANSWER = SessionOpenAck(session_id=42, session_flags_ack=SessionFlagsAck(4))


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (ANSWER, None),
        (ANSWER.replace(session_flags_ack=SessionFlagsAck(8)), Outcome.BAD_COMBINATION),
        (ANSWER.replace(session_flags_ack=SessionFlagsAck(16)), None),
        (ANSWER.replace(session_status=SessionStatus.RESUMED), Outcome.BAD_COMBINATION),
        (ANSWER.replace(session_id=5), Outcome.SESSION_EXISTS),
        (SessionOpenAck(session_id=5, session_status=SessionStatus.REJECTED), None),
    ],
)
def test_reading_an_answer(answer: SessionOpenAck, outcome: Outcome | None) -> None:
    """nnrp-wire 7.8, the checks that need the request."""
    if outcome is None:
        check_answer(OPEN, answer, {5})
        return
    with pytest.raises(NnrpError) as caught:
        check_answer(OPEN, answer, {5})
    assert caught.value.outcome is outcome
    assert not caught.value.fatal


def test_a_resume_is_answered_with_its_session() -> None:
    """nnrp-wire 13.7: with any other the client would go on in a session it has not asked for."""
    asked = OPEN.replace(resume_token_bytes=24)
    for status in (SessionStatus.OPENED, SessionStatus.RESUMED):
        check_answer(asked, ANSWER.replace(session_status=status), {5})
        with pytest.raises(NnrpError) as caught:
            check_answer(asked, ANSWER.replace(session_status=status, session_id=43), {5})
        assert caught.value.outcome is Outcome.BAD_COMBINATION


def test_both_ends_hold_the_same_terms() -> None:
    decision = decide(features=0b101, policy=attrs.evolve(POLICY, route_scope_id=9), server_session_tag=3)
    assert decision.terms is not None
    answer = answer_message(decision, b"token", 16)
    assert terms_of_answer(OPEN, answer, 0b101) == decision.terms


# Resume

HELD = Resumable(42, b"T" * 24, 2, 0x1001, 3, principal="me", expires_at=100.0, oldest_event_id=50)
ASK = ResumeRequest(42, b"T" * 24, 2, 0x1001, 3, principal="me")


@pytest.mark.parametrize(
    ("request_", "held", "refusal"),
    [
        (attrs.evolve(ASK, token=b"random bytes of a stranger"), HELD, ResumeRefusal.WRONG_TOKEN),
        (attrs.evolve(ASK, token=b"T" * 23 + b"U"), HELD, ResumeRefusal.WRONG_TOKEN),
        (attrs.evolve(ASK, token=b"T" * 23), HELD, ResumeRefusal.WRONG_TOKEN),
        (attrs.evolve(ASK, token=None), HELD, ResumeRefusal.NO_TOKEN),
        (attrs.evolve(ASK, token=b""), HELD, ResumeRefusal.NO_TOKEN),
        (ASK, attrs.evolve(HELD, expires_at=10.0), ResumeRefusal.EXPIRED),
        (ASK, attrs.evolve(HELD, session_id=41), ResumeRefusal.UNKNOWN_SESSION),
        (ASK, None, ResumeRefusal.UNKNOWN_SESSION),
        (attrs.evolve(ASK, profile_id=1), HELD, ResumeRefusal.OTHER_CONTRACT),
        (attrs.evolve(ASK, schema_version=4), HELD, ResumeRefusal.OTHER_CONTRACT),
        (attrs.evolve(ASK, principal="you"), HELD, ResumeRefusal.OTHER_PRINCIPAL),
        (ASK, attrs.evolve(HELD, resume_enabled=False), ResumeRefusal.NOT_RESUMABLE),
        (ASK, attrs.evolve(HELD, token=None), ResumeRefusal.NOT_RESUMABLE),
    ],
)
def test_bad_tokens(request_: ResumeRequest, held: Resumable | None, refusal: ResumeRefusal) -> None:
    """C-087: all refused the same way to the peer; the reason is for our logs. Used up: a token of None."""
    decision = decide_resume(request_, held, 10.0)
    assert (decision.plan, decision.refusal) == (None, refusal)
    opening = decide(OPEN.replace(resume_token_bytes=24), resume=lambda: decision)
    assert (opening.status, opening.code) == (SessionStatus.REJECTED, CODE.RESUME_REJECTED)
    assert opening.resume_refusal is refusal
    answer = answer_message(opening, b"", 0)
    assert classify_answer(answer.session_status, 0, answer.session_error_code) is ResumeOutcome.RESUME_REJECTED
    owner = decide_resume(ASK, HELD, 10.0)
    assert owner.plan is not None, "the true owner can still resume"


def test_a_resumed_session() -> None:
    decision = decide_resume(attrs.evolve(ASK, schema_id=0, schema_version=0), HELD, 99.9)
    asked = OPEN.replace(resume_token_bytes=24, schema_id=0, schema_version=0)
    opening = decide(asked, resume=lambda: decision)
    assert opening.status is SessionStatus.RESUMED
    assert opening.terms is not None
    assert (opening.terms.schema_id, opening.terms.schema_version) == (0x1001, 3), "the default it has is confirmed"


def test_a_session_that_is_on_this_connection_cannot_be_resumed_to_it() -> None:
    opening = decide(OPEN.replace(resume_token_bytes=24), present={42}, resume=lambda: decide_resume(ASK, HELD, 0.0))
    assert opening.code == CODE.RESUME_REJECTED


@pytest.mark.parametrize(
    ("watermark", "cursor", "granted", "redelivery", "position", "gap"),
    [
        (0, 0, True, Redelivery.UNFINISHED, 0, None),
        (7, 0, True, Redelivery.AFTER_OPERATION, 7, None),
        (7, 60, True, Redelivery.AFTER_EVENT, 60, None),
        (0, 49, True, Redelivery.AFTER_EVENT, 49, None),
        (0, 48, True, Redelivery.AFTER_EVENT, 49, 50),
        (7, 60, False, Redelivery.UNFINISHED, 0, None),
    ],
)
def test_what_is_sent_again(
    watermark: int, cursor: int, granted: bool, redelivery: Redelivery, position: int, gap: int | None
) -> None:
    """nnrp-extensions Resume watermark: cursor before watermark, only when granted, and a gap is named."""
    request = attrs.evolve(ASK, resume_from_operation_id=watermark, last_event_id=cursor)
    plan = decide_resume(request, HELD, 0.0, watermark_granted=granted).plan
    assert plan is not None
    assert (plan.redelivery, plan.position, plan.first_available) == (redelivery, position, gap)


@pytest.mark.parametrize(
    ("watermark", "granted", "gap"), [(0, True, 50), (6, True, 50), (7, True, None), (0, False, None), (6, False, None)]
)
def test_a_gap_is_named_without_a_cursor_too(watermark: int, granted: bool, gap: int | None) -> None:
    """nnrp-extensions Resume watermark: something is gone of an operation that is to be redelivered; operation 7 was the last
    to lose anything."""
    request = attrs.evolve(ASK, resume_from_operation_id=watermark)
    plan = decide_resume(request, attrs.evolve(HELD, lost_operation_id=7), 0.0, watermark_granted=granted).plan
    assert plan is not None
    assert plan.first_available == gap


@pytest.mark.parametrize(
    ("status", "flags", "code", "outcome"),
    [
        (SessionStatus.OPENED, 1, 0, ResumeOutcome.RESUME_ENABLED),
        (SessionStatus.OPENED, 0, 0, ResumeOutcome.FRESH),
        (SessionStatus.RESUMED, 1, 0, ResumeOutcome.RESUMED),
        (SessionStatus.RESUMED, 1, CODE.RESUME_REJECTED, ResumeOutcome.RESUMED),
        (SessionStatus.REJECTED, 0, CODE.RESUME_REJECTED, ResumeOutcome.RESUME_REJECTED),
        (SessionStatus.REJECTED, 0, CODE.AUTH_FAILED, ResumeOutcome.NOT_INSTALLED),
        (SessionStatus.RETRY_LATER, 0, CODE.RESUME_REJECTED, ResumeOutcome.NOT_INSTALLED),
    ],
)
def test_classification(status: SessionStatus, flags: int, code: int, outcome: ResumeOutcome) -> None:
    """nnrp-wire 13.7, outcome classification; a code beside resumed is reported, not refused (18 item 43)."""
    assert classify_answer(status, flags, code) is outcome


# Migration


def test_migration_goes_on_after_what_the_server_has() -> None:
    """nnrp-wire 13.9 item 3."""
    assert decide_migration(7, grace_window_ms=500) == MigrationAnswer(0, 8, 500)
    assert decide_migration(7, highest_frame_id=12, grace_window_ms=500).resume_from_frame_id == 13
    refused = decide_migration(7, refusal=MigrationRefusal.UNKNOWN_SESSION, grace_window_ms=500)
    assert not refused.accepted
    assert refused.resume_from_frame_id == 7


def test_the_old_path_in_grace() -> None:
    """nnrp-wire 13.9 items 3 and 4."""
    migration = Migration()
    migration.ask(5)
    assert migration.next_deadline() == float("inf")
    assert migration.answer(MigrationAnswer(0, 6, 500), 10.0) is MigrationEffect.REBIND
    assert [frame for frame in range(4, 9) if migration.replay(frame)] == [6, 7, 8]
    with pytest.raises(NnrpError) as caught:
        migration.check_new_work(1, 6)
    assert caught.value.outcome is Outcome.BAD_STATE
    assert migration.next_deadline() == 10.5
    assert migration.handle_deadline(10.4) is None
    assert migration.handle_deadline(10.5) is MigrationEffect.RETIRE
    assert migration.state is PathState.RETIRED


def test_a_migration_may_not_resume_behind_the_cursor() -> None:
    """nnrp-wire 7.19, vector reject.migrate_ack_cursor_behind."""
    migration = Migration()
    migration.ask(9)
    with pytest.raises(NnrpError) as caught:
        migration.answer(MigrationAnswer(0, 8, 0), 0.0)
    assert caught.value.outcome is Outcome.BAD_COMBINATION
    assert migration.state is PathState.MOVING


def test_a_refused_migration_keeps_the_path() -> None:
    migration = Migration()
    migration.ask(9)
    assert migration.answer(MigrationAnswer(1, 0, 0), 0.0) is MigrationEffect.KEEP
    migration.check_new_work(1, 10)
    assert migration.lose_path() is MigrationEffect.RETIRE


# Hello


def test_the_answer_stays_within_the_offer() -> None:
    """nnrp-wire 7.2."""
    offer = HELLO.replace(supported_profile_bitmap=2, supported_dtype_bitmap=0x1F)
    answer = negotiate(offer, HelloPolicy(dtype_bitmap=0x30), session_id=0, extension_bytes=0)
    assert (answer.accepted_profile_bitmap, answer.accepted_dtype_bitmap) == (2, 0x10)
    assert check_hello_ack(offer, answer, strict=True) is answer


@pytest.mark.parametrize(
    "policy", [HelloPolicy(profile_bitmap=4), HelloPolicy(payload_kind_bitmap=0)], ids=["profile", "payload"]
)
def test_nothing_in_common(policy: HelloPolicy) -> None:
    """nnrp-wire 15: unsupported_capability, connection, fatal."""
    with pytest.raises(NnrpError) as caught:
        negotiate(HELLO, policy, session_id=0, extension_bytes=0)
    assert (caught.value.code, caught.value.fatal) == (ErrorCode.UNSUPPORTED_CAPABILITY, True)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"selected_version_major": 2}, ErrorCode.UNSUPPORTED_VERSION),
        ({"selected_wire_format": 1}, ErrorCode.UNSUPPORTED_VERSION),
        ({"selected_wire_format": 77}, ErrorCode.UNSUPPORTED_VERSION),
        ({"accepted_profile_bitmap": 4}, ErrorCode.UNSUPPORTED_CAPABILITY),
        ({"accepted_payload_kind_bitmap": 0x7F}, ErrorCode.UNSUPPORTED_CAPABILITY),
        ({"cache_object_bitmap": 0x10000}, ErrorCode.UNSUPPORTED_CAPABILITY),
    ],
)
def test_an_answer_outside_the_offer(changes: dict[str, int], code: ErrorCode) -> None:
    """nnrp-wire 7.2 and vectors reject.hello_ack_*: strict refuses; tolerant clamps the bitmaps (18 item 34)."""
    offer = HELLO.replace(supported_payload_kind_bitmap=PayloadKind.TENSOR)
    good = negotiate(offer, HelloPolicy(), session_id=0, extension_bytes=0)
    bad = good.replace(**changes)
    with pytest.raises(NnrpError) as caught:
        check_hello_ack(offer, bad, strict=True)
    assert (caught.value.outcome, caught.value.code) == (Outcome.BAD_COMBINATION, code)
    if code is ErrorCode.UNSUPPORTED_CAPABILITY:
        field, value = next(iter(changes.items()))
        clamped = check_hello_ack(offer, bad, strict=False)
        source = {"accepted_profile_bitmap": 3, "accepted_payload_kind_bitmap": 1, "cache_object_bitmap": 0x1FF}
        assert getattr(clamped, field) == value & source[field]
    else:
        with pytest.raises(NnrpError):
            check_hello_ack(offer, bad, strict=False)


# Patch

SETTINGS = SessionSettings(target_cadence_x100=6000, quality_tier=2)


def test_an_accepted_patch() -> None:
    """nnrp-wire 7.3, 7.4: fields whose bit is clear are ignored."""
    request = SessionPatch(patch_mask=PatchMask(3), target_cadence_x100=3000, quality_tier=1, degrade_policy=9)
    ack, body, settings = decide_patch(request, b"", SETTINGS, PatchPolicy(), profile_id=2)
    assert (ack.ack_status, ack.reject_reason) == (AckStatus.ACCEPTED, PatchRejectReason.NONE)
    assert (ack.applied_patch_mask, ack.rejected_patch_mask, body) == (3, 0, b"")
    assert (settings.target_cadence_x100, settings.quality_tier, settings.degrade_policy) == (3000, 1, 0)
    assert apply_answer(ack, b"", SETTINGS) == settings
    assert ack.effective_profile_id == 2


@pytest.mark.parametrize(
    ("request_", "policy", "reason"),
    [
        (SessionPatch(patch_mask=PatchMask(1)), PatchPolicy(mask=0x7E), PatchRejectReason.UNSUPPORTED_FIELD),
        (SessionPatch(1, PatchMask(1)), PatchPolicy(), PatchRejectReason.UNSUPPORTED_FIELD),
        (
            SessionPatch(patch_mask=PatchMask(4), degrade_policy=9),
            PatchPolicy(),
            PatchRejectReason.UNSUPPORTED_STRATEGY,
        ),
        (SessionPatch(patch_mask=PatchMask(8), active_lane_mask=2), PatchPolicy(), PatchRejectReason.INVALID_LANE_MASK),
        (SessionPatch(patch_mask=PatchMask(8)), PatchPolicy(), PatchRejectReason.INVALID_LANE_MASK),
        (
            SessionPatch(patch_mask=PatchMask(16), preferred_codec_bitmap=4),
            PatchPolicy(codec_bitmap=3),
            PatchRejectReason.INVALID_RANGE,
        ),
        (SessionPatch(patch_mask=PatchMask(64)), PatchPolicy(), PatchRejectReason.UNSUPPORTED_FIELD),
        (SessionPatch(patch_mask=PatchMask(1)), PatchPolicy(retry_after_ms=5), PatchRejectReason.RATE_LIMITED),
    ],
)
def test_a_refused_patch(request_: SessionPatch, policy: PatchPolicy, reason: PatchRejectReason) -> None:
    ack, _, settings = decide_patch(request_, b"", SETTINGS, policy, profile_id=2)
    assert (ack.ack_status, ack.reject_reason) == (AckStatus.REJECTED, reason)
    assert ack.rejected_patch_mask == request_.patch_mask
    assert settings == SETTINGS


def test_a_patch_that_is_partly_applied() -> None:
    request = SessionPatch(patch_mask=PatchMask(0x45), target_cadence_x100=1, degrade_policy=9)
    ack, body, settings = decide_patch(request, b"P" * 16, SETTINGS, PatchPolicy(), profile_id=2)
    assert ack.ack_status is AckStatus.PARTIALLY_APPLIED
    assert (ack.applied_patch_mask, ack.rejected_patch_mask) == (0x41, 4)
    assert (body, ack.profile_patch_ack_bytes, settings.profile_patch) == (b"P" * 16, 16, b"P" * 16)
