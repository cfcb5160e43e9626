"""NNRP served: listeners, one driver for every transport, and the sessions that outlive their connections."""

from __future__ import annotations

from server.nnrp.backpressure import DRAIN_ONLY, GO_ON, ONLY_BACKGROUND, PAUSE, FlowOrder
from server.nnrp.listener import listen_tcp
from server.nnrp.policy import ServingPolicy
from server.nnrp.scheduler import SchedulingPolicy
from server.nnrp.service import NnrpService, open_service

__all__ = [
    "DRAIN_ONLY",
    "GO_ON",
    "ONLY_BACKGROUND",
    "PAUSE",
    "FlowOrder",
    "NnrpService",
    "SchedulingPolicy",
    "ServingPolicy",
    "listen_tcp",
    "open_service",
]
