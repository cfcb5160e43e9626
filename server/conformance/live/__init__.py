"""The cases of the public suite against a running server: raw packets and our client over its transports."""

# Importing a module registers its cases.
import server.conformance.live.bytes_
import server.conformance.live.flow
import server.conformance.live.objects
import server.conformance.live.operations
import server.conformance.live.payloads
import server.conformance.live.sessions
import server.conformance.live.transports  # noqa: F401  # all seven, for what they register
from server.conformance.live.judge import LIVE, run_live_cases
from server.conformance.live.place import Place, open_place

__all__ = ["LIVE", "Place", "open_place", "run_live_cases"]
