"""Operations carried out by one async function: what an embedding program gives."""

from __future__ import annotations

from server.nnrp.submit import Answer, Emit, Handler, Submit

__all__ = ["FunctionWorker"]


class FunctionWorker:
    """Runs ``handler(submit, emit)``. An `OperationFailed` it raises is the operation's error; any other exception is
    logged and becomes internal_error."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    def answer_nowait(self, submit: Submit) -> Answer | None:
        return None

    async def run(self, submit: Submit, emit: Emit) -> Answer:
        return await self._handler(submit, emit)

    def close(self) -> None:
        return
