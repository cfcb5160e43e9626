"""NNRP served: listeners, one driver for every transport, and the sessions that outlive their connections."""

from __future__ import annotations

from server.nnrp.listener import listen_tcp
from server.nnrp.policy import ServingPolicy
from server.nnrp.service import NnrpService, open_service

__all__ = ["NnrpService", "ServingPolicy", "listen_tcp", "open_service"]
