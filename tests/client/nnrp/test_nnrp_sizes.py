"""max_body_bytes as the client keeps to it (nnrp-wire 7.2, 2.1 item 6): beyond it the server would end the connection (15)."""

from __future__ import annotations

import pytest

from client.nnrp import NnrpSession, SubmitOptions, open_nnrp
from protocol.nnrp.enums import PayloadKind
from protocol.nnrp.errors import NnrpLocalError, Outcome
from protocol.nnrp.machines.hello import HelloPolicy
from protocol.nnrp.plain import BODY_BYTES
from server.nnrp import ServingPolicy
from tests.support.nnrp import serving_nnrp

LARGEST = 10_000
SMALL = ServingPolicy(hello=HelloPolicy(max_body_bytes=LARGEST))


async def submits(session: NnrpSession, size: int, options: SubmitOptions) -> bytes:
    return (await (await session.submit(bytes(size), options=options)).result()).data


@pytest.mark.parametrize("traced", [False, True], ids=["plain", "with a submit_context"])
async def test_a_submit_that_the_server_would_not_read(traced: bool) -> None:
    """It is refused here, before anything is sent; the largest that fits is answered, and credit is as it was."""
    options = SubmitOptions(group_id=9) if traced else SubmitOptions()
    around = BODY_BYTES + (56 if traced else 0)
    async with serving_nnrp(SMALL) as served, open_nnrp(served.url) as connection:
        session = await connection.open_session(resumable=True)
        with pytest.raises(NnrpLocalError, match="of this size") as refused:
            await session.submit(bytes(LARGEST - around + 1), options=options)
        assert refused.value.outcome is Outcome.LIMIT_EXCEEDED
        assert session.in_flight == 0
        size = LARGEST - around
        assert await submits(session, size, options) == bytes(size)
        assert served.service.violations == 0
        assert connection.reconnects == 0


async def test_an_object_that_the_server_would_not_read() -> None:
    async with serving_nnrp(SMALL) as served, open_nnrp(served.url) as connection:
        session = await connection.open_session()
        with pytest.raises(NnrpLocalError, match="of this size"):
            await session.cache.put((0, 1), bytes(LARGEST + 1))
        assert (await session.request(b"x", kind=PayloadKind.TOKEN_CHUNK)).data == b"x"
        assert served.service.violations == 0
