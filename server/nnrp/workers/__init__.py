"""What carries out NNRP operations: `echo`, `agent`, the runner behind the engine's sessions, and functions of an embedding
program, with text or arrays in and out."""

from __future__ import annotations

from server.nnrp.workers.agent import AgentWorker
from server.nnrp.workers.arrays import answer_of, arrays_of, tensor_handler
from server.nnrp.workers.echo import EchoWorker
from server.nnrp.workers.function import FunctionWorker
from server.nnrp.workers.tokens import Say, token_handler

__all__ = [
    "AgentWorker",
    "EchoWorker",
    "FunctionWorker",
    "Say",
    "answer_of",
    "arrays_of",
    "tensor_handler",
    "token_handler",
]
