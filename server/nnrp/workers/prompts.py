"""A submit as text: what runners of the token profile read."""

from __future__ import annotations

from typing import Final

from protocol.nnrp.enums import ErrorCode, ObjectKind, PayloadKind
from protocol.nnrp.payloads import TokenChunk
from server.nnrp.submit import OperationFailed, Submit

__all__ = ["prompt_text"]

_TENSOR: Final = PayloadKind.TENSOR.value


def prompt_text(submit: Submit) -> str:
    """The submitted text, behind the prompt segments it refers to. Raises `OperationFailed` for what is no text."""
    if int(submit.metadata.payload_kind_bitmap) & _TENSOR:
        raise OperationFailed("text is read here, not tensors", ErrorCode.UNSUPPORTED_CAPABILITY)
    hints = bool(submit.session.terms.features)
    parts = submit.referenced(ObjectKind.PROMPT_SEGMENT)
    if submit.content.regions.payloads:
        parts += [bytes(TokenChunk.parse(each, hints=hints).text) for each in submit.content.regions.payloads]
    else:
        parts += [bytes(each) for each in submit.data()]
    try:
        return b"".join(parts).decode("utf-8")
    except UnicodeDecodeError as problem:
        raise OperationFailed("the payload is not UTF-8", ErrorCode.MALFORMED_BODY) from problem
