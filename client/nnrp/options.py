"""What a client can say of the server it connects to, and of how long it waits."""

from __future__ import annotations

import random
from typing import Literal

import attrs

from client.backoff import ReconnectPolicy
from client.nnrp.dialling import Connect

__all__ = ["NnrpOptions"]


@attrs.frozen(slots=True, kw_only=True)
class NnrpOptions:
    """Times in seconds. ``dialect`` names the server where it is not a full preview3 one. ``reconnect`` None: a lost
    connection is the end. ``connect`` opens the stream of every transport but QUIC, for tests and tunnels. ``ca_file``:
    whose certificates to trust, in PEM, instead of those of the system. ``one_stream`` and ``datagrams`` are about QUIC: use
    one stream for everything, as nnrp-rs does; send PING and FRAME_CANCEL as datagrams, which may be lost. ``alternatives``
    are further URLs of the same server, tried in turn when a connection was lost. ``answer_timeout``: how long the server may
    take to answer a SESSION_OPEN, a SESSION_MIGRATE, a PING or a CACHE_PUT."""

    token: str | None = None
    dialect: Literal["native", "nnrp-py", "nnrp-rs"] = "native"
    strict: bool = False
    open_timeout: float = 10.0
    answer_timeout: float = 30.0
    send_timeout: float = 30.0
    keepalive: float = 30.0
    idle_timeout: float = 120.0
    reconnect: ReconnectPolicy | None = attrs.field(factory=lambda: ReconnectPolicy(base=0.2, give_up_after=120.0))
    connect: Connect | None = None
    ca_file: str | None = None
    one_stream: bool = False
    datagrams: bool = False
    alternatives: tuple[str, ...] = ()
    random: random.Random = attrs.field(factory=random.Random)

    @property
    def auth(self) -> bytes:
        return b"" if self.token is None else self.token.encode("utf-8")
