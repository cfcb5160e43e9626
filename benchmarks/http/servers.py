"""Starting the two servers the same way, and looking at them from outside: CPU and memory from /proc."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

__all__ = ["AGENT", "NAMES", "Server", "cpu_seconds", "rss_bytes", "serving"]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
AGENT = ("node", str(HERE / "agent.mjs"))
QWEN = ROOT / "tests/interop/node/node_modules/@qwen-code/qwen-code/cli-entry.js"
NAMES = ("moorline", "qwen")
_LISTENING = re.compile(r"listening on (https?://\S+)")
_TICKS = os.sysconf("SC_CLK_TCK")
_START_TIMEOUT_S = 60.0


class Server:
    """One running server process; `host` and `port` to connect to, `pid` to look at."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], url: str, workspace: Path) -> None:
        self.name = name
        self.process = process
        self.url = url
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self.address = (parts.hostname, parts.port)
        self.workspace = workspace

    @property
    def pid(self) -> int:
        return self.process.pid

    def cpu(self) -> float:
        """Processor seconds of the server process so far, its children excluded."""
        return cpu_seconds(self.pid)

    def rss(self) -> int:
        """Resident bytes of the server process, its children excluded."""
        return rss_bytes(self.pid)


def cpu_seconds(pid: int) -> float:
    """User plus system time of `pid` and its threads, in seconds; the kernel counts in steps of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def rss_bytes(pid: int) -> int:
    """Resident set of `pid` in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)


def _moorline(workspace: Path, flags: tuple[str, ...], agent: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    unlimited = ("--max-sessions", "0", "--max-total-sessions", "0", "--max-connections", "0", "--log-level", "warning")
    command = [sys.executable, "-m", "server", "--port", "0", "--workspace", str(workspace), *unlimited]
    return [*command, "--agent", shlex.join(agent), *flags], {"MOORLINE_NNRP_PORT": "0"}


def _qwen(workspace: Path, flags: tuple[str, ...], agent: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    # The daemon starts `node ENTRY --acp`: the benchmark agent stands in for its own.
    unlimited = ("--max-sessions", "0", "--max-total-sessions", "0", "--max-connections", "0", "--no-web")
    command = ["node", str(QWEN), "serve", "--port", "0", "--workspace", str(workspace), *unlimited, *flags]
    env = {"QWEN_CLI_ENTRY": agent[-1], "OPENAI_API_KEY": "x", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    return command, {**env, "OPENAI_MODEL": "none", "HOME": str(workspace.parent)}


def _relay(_: Path, __: tuple[str, ...], agent: tuple[str, ...], *, form: str) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, "-m", "benchmarks.http.relay", form, *agent], {}


_COMMANDS = {
    "moorline": _moorline,
    "qwen": _qwen,
    "relay": partial(_relay, form="websocket"),
    "copies": partial(_relay, form="copies"),
}


@contextmanager
def serving(name: str, *flags: str, agent: tuple[str, ...] = AGENT) -> Iterator[Server]:
    """The server `name` (or a relay, which takes no flags) on a free port with the benchmark agent behind it; ended by SIGTERM, in the end by SIGKILL."""
    with tempfile.TemporaryDirectory(prefix=f"bench-{name}-") as root:
        workspace = Path(root) / "workspace"
        workspace.mkdir()
        command, env = _COMMANDS[name](workspace, flags, agent)
        log = Path(root) / "log"
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **env},
                stdout=subprocess.PIPE,
                stderr=stderr,
                stdin=subprocess.DEVNULL,
            )
        try:
            yield Server(name, process, _announced(process, log), workspace)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _announced(process: subprocess.Popen[bytes], log: Path) -> str:
    found: list[str] = []
    ready = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if match := _LISTENING.search(line.decode()):
                found.append(match[1].rstrip("/"))
                ready.set()
        ready.set()

    threading.Thread(target=read, daemon=True).start()
    ready.wait(_START_TIMEOUT_S)
    if not found:
        raise RuntimeError(f"the server did not start:\n{log.read_text()[-2000:]}")
    # The shipped daemon starts its agent one second after it listens; measure neither of them while they start.
    time.sleep(3.0)
    return found[0]
