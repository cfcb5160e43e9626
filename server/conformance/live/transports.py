"""The smallest exchange over each transport: connect, hello, a session, a submit and its result, a good end."""

from __future__ import annotations

from server.conformance.case import Evidence, expect
from server.conformance.live.judge import live_case
from server.conformance.live.place import Place, Unavailable

__all__: list[str] = []


async def _minimum(place: Place, url: str, evidence: Evidence) -> None:
    async with place.client(url) as connection:
        evidence.note(f"connected to {url.split(':', 1)[0]}")
        session = await connection.open_session()
        small, large = await session.request(b"hello"), await session.request(b"x" * 300_000)
        expect(small.data == b"hello", "a submit is answered")
        expect(large.data == b"x" * 300_000, "also one of many packets of the transport")
        evidence.note(f"PING takes {await connection.ping():.6f} s")
        await session.close()
        expect(session.over, "the session is closed")


@live_case("l3.transport.tcp.minimum")
async def tcp(place: Place, evidence: Evidence) -> None:
    await _minimum(place, place.url, evidence)


@live_case("l3.transport.quic.minimum")
async def quic(place: Place, evidence: Evidence) -> None:
    if place.quic is None:
        raise Unavailable(place.no_quic)
    await _minimum(place, place.quic, evidence)
