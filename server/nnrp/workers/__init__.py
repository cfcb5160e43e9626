"""What carries out NNRP operations: `echo`, and `agent`, the runner behind the engine's sessions."""

from __future__ import annotations

from server.nnrp.workers.agent import AgentWorker
from server.nnrp.workers.echo import EchoWorker
from server.nnrp.workers.function import FunctionWorker

__all__ = ["AgentWorker", "EchoWorker", "FunctionWorker"]
