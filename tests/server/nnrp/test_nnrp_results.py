"""Results of one session that are alike are made from a template: byte for byte what is made without one."""

from __future__ import annotations

import pytest

from protocol.nnrp.enums import OperationFeatures, PayloadKind, ResultClass
from protocol.nnrp.errors import NnrpLocalError
from protocol.nnrp.machines.credit import UNLIMITED, Window
from protocol.nnrp.machines.operation import Operation
from protocol.nnrp.machines.session import Session
from protocol.nnrp.machines.terms import SessionTerms
from protocol.nnrp.regions import TypedPayload
from protocol.nnrp.tensor import TensorBody
from server.nnrp.results import PlainResults, push_parts
from server.nnrp.submit import Answer, text_payload

TEXT, EVENT = PayloadKind.TOKEN_CHUNK, PayloadKind.STRUCTURED_EVENT


def session(**terms: int) -> Session:
    return Session(5, SessionTerms(profile_id=2, **terms), Window(UNLIMITED), Window(UNLIMITED))


def said(data: bytes, *, terminal: bool = True, kinds: PayloadKind = TEXT, profile_id: int = 2) -> Answer:
    payload = text_payload(data, terminal=terminal, schema=(0x1001, 3))
    return Answer(payloads=(payload,), kinds=kinds, profile_id=profile_id)


def test_one_after_the_other_they_are_the_same() -> None:
    """nnrp-wire 7.13, 8.5: whatever came before, of the same or another shape."""
    results, machine = PlainResults(), session()
    answers = [said(b"one"), said(b""), said(bytes(5000)), said(b"x", terminal=False), said(b"one")]
    answers += [said(b"{}", kinds=EVENT, profile_id=3), said(b"y", profile_id=0), said(b"y", kinds=TEXT | EVENT)]
    for number, answer in enumerate(answers, 1):
        for view_id, route_id, trace_id in ((0, 0, 0), (1, 2, 3)):
            operation = Operation(number, number, view_id)
            operation.route_id, operation.trace_id = route_id, trace_id
            assert results.parts(machine, operation, answer) == push_parts(machine, operation, answer)


def test_what_says_more_is_not_made_from_a_template() -> None:
    results, operation = PlainResults(), Operation(1, 1)
    plain = said(b"x")
    (payload,) = plain.payloads
    legacy = TypedPayload.legacy(b"x", TEXT)
    for answer in (
        Answer(),
        Answer(payloads=(payload, payload), kinds=TEXT),
        Answer(payloads=(payload,), kinds=TEXT, tensor=TensorBody()),
        Answer(payloads=(payload,), kinds=TEXT, result_class=ResultClass.DEGRADED),
        Answer(payloads=(legacy,), kinds=TEXT),
    ):
        assert results.parts(session(), operation, answer) is None
    assert results.parts(session(features=int(OperationFeatures.OPERATION_STATE)), operation, plain) is None
    dialect = session()
    dialect.legacy_descriptors = True
    assert results.parts(dialect, operation, plain) is None


def test_a_result_that_is_illegal_is_refused_again_and_again() -> None:
    """nnrp-wire 8.5: a token_chunk body has descriptors of profile token. The template before it does not let it pass."""
    results, machine, operation = PlainResults(), session(), Operation(1, 1)
    assert results.parts(machine, operation, said(b"x")) is not None
    wrong = Answer(payloads=(TypedPayload.of(b"x", profile_id=3),), kinds=TEXT)
    also = Answer(payloads=(TypedPayload.of(b"x", profile_id=1),), kinds=EVENT)
    assert results.parts(machine, operation, Answer(payloads=also.payloads, kinds=PayloadKind(0))) is not None
    for answer, rule in ((wrong, "profile token"), (wrong, "profile token"), (also, "tensor"), (also, "tensor")):
        with pytest.raises(NnrpLocalError, match=rule):
            results.parts(machine, operation, answer)
    assert results.parts(machine, operation, said(b"x")) == push_parts(machine, operation, said(b"x"))
