"""The cases of the public suite against a running server: raw packets and our client over its transports."""

from server.conformance.live import bytes_, flow, objects, operations, payloads, sessions, transports
from server.conformance.live.judge import LIVE, run_live_cases
from server.conformance.live.place import Place, open_place

__all__ = ["LIVE", "Place", "open_place", "run_live_cases"]

_MODULES = (bytes_, sessions, flow, operations, payloads, objects, transports)
"""Importing them registers their cases."""
