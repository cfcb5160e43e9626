"""What stands in a body, decoded: one class for control messages, one for submits and results (nnrp-wire 5, 8)."""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

import msgspec

from protocol.layout import Buffer
from protocol.nnrp.enums import OperationFeatures, PayloadKind
from protocol.nnrp.extensions import NO_FEATURES, ControlExtension
from protocol.nnrp.regions import Regions, TypedPayload
from protocol.nnrp.tensor import TensorBody

__all__ = ["VIEW_BYTES", "Body", "BodyForm", "Context", "ControlBody", "DataBody"]

VIEW_BYTES = 4096
"""From this size on a body is a view of the buffer it arrived in; smaller ones are copied, which is cheaper and
lets go of the buffer."""


class ControlBody(msgspec.Struct, frozen=True, gc=False):
    """The blocks of a control message's body; each message has the ones the specification gives it."""

    extensions: tuple[ControlExtension, ...] = ()
    resume_token: Buffer = b""
    auth: Buffer = b""
    diagnostic: Buffer = b""
    """Text for humans, UTF-8 by rule; decode with errors="replace"."""
    object: Buffer = b""
    """The object of a CACHE_PUT."""
    opaque: Buffer = b""
    """A profile patch, probe padding, a migration body, a close reason: whatever has no form of its own."""
    declared_absent: bool = False
    """The metadata declares blocks, the body is empty: a tolerated peer (nnrp-wire 5). Nothing is available."""


class BodyForm(Enum):
    """How the body of a FRAME_SUBMIT or RESULT_PUSH is laid out (nnrp-wire 8.1)."""

    FLAT_TENSOR = "flat_tensor"
    EMPTY = "empty"
    REGION = "region"
    RAW = "raw"
    """Tolerant only: the whole body is one payload of the one declared kind."""


class DataBody(msgspec.Struct, frozen=True, gc=False):
    """The decoded body of a FRAME_SUBMIT or RESULT_PUSH."""

    form: BodyForm
    regions: Regions = Regions()
    tensor: TensorBody = TensorBody()
    raw: Buffer = b""
    raw_kind: PayloadKind | None = None

    @property
    def payloads(self) -> tuple[TypedPayload, ...]:
        return self.regions.payloads


Body: TypeAlias = ControlBody | DataBody


class Context(msgspec.Struct, frozen=True, gc=False):
    """How a body is to be read."""

    strict: bool = True
    granted: OperationFeatures = NO_FEATURES
    """The operation extensions of the session; what was not granted counts as unknown."""
    at: int = 0
    """The position reported for the first byte of the body."""
