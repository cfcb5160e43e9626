"""What can stand behind a session: four implementations of `sessions.runner.Runner`. See ``docs/runners.md``."""

from server.backends.acp_stdio import AcpAgentRunner, AcpRunnerStatistics, RestartPolicy
from server.backends.demo import DemoRunner
from server.backends.emitter import Emitter
from server.backends.handler import Handler, HandlerRunner
from server.backends.openai import OpenAIRunner
from server.backends.settings import Mode, Model

__all__ = [
    "AcpAgentRunner",
    "AcpRunnerStatistics",
    "DemoRunner",
    "Emitter",
    "Handler",
    "HandlerRunner",
    "Mode",
    "Model",
    "OpenAIRunner",
    "RestartPolicy",
]
