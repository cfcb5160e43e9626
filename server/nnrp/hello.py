"""Answering a hello: who is it, and what have we in common (nnrp-wire 7.1, 7.2; nnrp-extensions, Authentication)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.nnrp.bodies import ControlBody
from protocol.nnrp.descriptors import LossToleranceBlock, PayloadCapabilities, TransportPolicy, TransportPolicyAck
from protocol.nnrp.enums import ExtType, PayloadKind, TransportId
from protocol.nnrp.errors import NnrpError
from protocol.nnrp.extensions import ControlExtension, pack_extensions
from protocol.nnrp.machines.events import HelloReceived
from server.nnrp.policy import ServingPolicy
from server.telemetry import log

if TYPE_CHECKING:
    from server.nnrp.driver import Link

__all__ = ["answer_hello"]


def answer_hello(link: Link, event: HelloReceived) -> None:
    """Accept or refuse; a refusal ends the connection."""
    content = event.packet.content
    assert isinstance(content, ControlBody)
    policy = link.service.policy
    principal = policy.authenticate(bytes(content.auth))
    if principal is None:
        log.warning("nnrp_auth_failed", transport=link.transport, message="CLIENT_HELLO")
        link.machine.refuse_hello()
        return
    link.principal = principal
    for each in content.extensions:
        if isinstance(each.value, LossToleranceBlock):
            link.machine.loss_tolerance = each.value.loss_tolerance
    try:
        link.machine.accept_hello(policy.hello, extensions=_answers(content, policy, link.transport_id))
    except NnrpError as fault:
        # Reported to the peer already.
        link.service.violations += 1
        log.info("nnrp_hello_refused", transport=link.transport, fault=str(fault))


def _answers(content: ControlBody, policy: ServingPolicy, transport: TransportId) -> bytes:
    """An entry for each known one of the hello (nnrp-wire 6): the policy as asked and the transport as it is, the loss
    tolerance as asked, the payload kinds in common."""
    answers = []
    for each in content.extensions:
        value = each.value
        if isinstance(value, TransportPolicy):
            asked = value.transport_policy
            ack = TransportPolicyAck(asked, asked, transport)
            answers.append(ControlExtension.of(ExtType.TRANSPORT_POLICY_ACK, ack))
        elif isinstance(value, LossToleranceBlock):
            answers.append(ControlExtension.of(ExtType.LOSS_TOLERANCE_ACK, value))
        elif isinstance(value, PayloadCapabilities):
            common = PayloadKind(int(value.payload_kind_bitmap) & policy.hello.payload_kind_bitmap)
            answers.append(ControlExtension.of(ExtType.PAYLOAD_CAPABILITIES_ACK, PayloadCapabilities(common)))
    return pack_extensions(answers)
