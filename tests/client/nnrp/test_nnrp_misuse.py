"""What may not be said is refused here, and nothing has happened (issue 5, Client): the answers go on going to their requests."""

from __future__ import annotations

import pytest

from client.nnrp import open_nnrp
from protocol.nnrp.enums import AckStatus
from protocol.nnrp.errors import NnrpLocalError
from tests.support.nnrp import serving_nnrp

TOO_MUCH = 1 << 40


async def test_what_does_not_fit_its_field() -> None:
    """Unsigned fields of a fixed width (section 4); 7.3, 7.7, 7.15: their answers come in the order of the requests."""
    async with serving_nnrp() as served, open_nnrp(served.url) as connection:
        with pytest.raises(NnrpLocalError):
            await connection.open_session(deadline_ms=TOO_MUCH)
        with pytest.raises(NnrpLocalError):
            await connection.open_session(token=b"of a session without an id")
        session = await connection.open_session()
        with pytest.raises(NnrpLocalError):
            await session.patch(quality_tier=TOO_MUCH)
        assert (await session.patch(quality_tier=1)).ack_status is AckStatus.ACCEPTED
        with pytest.raises(NnrpLocalError):
            await session.cache.put((0, 1), b"x", ttl_ms=TOO_MUCH)
        with pytest.raises(NnrpLocalError):
            session.cache.invalidate(namespace=TOO_MUCH)
        assert (await session.cache.put((0, 1), b"x", ttl_ms=7000)).ttl_ms == 7000
        assert (await session.request(b"x")).data == b"x"
    assert served.service.violations == 0
