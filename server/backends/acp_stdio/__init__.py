"""ACP agents on stdio. README: ``docs/runners.md``."""

from server.backends.acp_stdio.restart import RestartPolicy
from server.backends.acp_stdio.runner import AcpAgentRunner, AcpRunnerStatistics

__all__ = ["AcpAgentRunner", "AcpRunnerStatistics", "RestartPolicy"]
