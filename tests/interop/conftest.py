"""Fixtures for peers nobody here wrote: moorline as a real process, and Node with the pinned packages.

The processes are plain `subprocess` ones and the tests are ordinary functions: nothing of Trio stands between the peer and
the server it talks to.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import attrs
import msgspec
import pytest

from tests.support.openai_stub import OpenAIStub

__all__ = ["Check", "Moorline", "NodeRunner", "StartMoorline"]

HERE = Path(__file__).parent
NODE_DIR = HERE / "node"
QWEN = NODE_DIR / "node_modules" / "@qwen-code" / "qwen-code" / "cli-entry.js"
_LISTENING = re.compile(r"moorline listening on (https?://\S+)")
_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 10.0


def _node() -> str:
    """The path of `node`; skips, or fails under MOORLINE_REQUIRE_NODE=1, when it or the packages are missing."""
    missing = None
    node = shutil.which("node")
    if node is None:
        missing = "Node.js is not installed"
    elif not QWEN.is_file():
        missing = "the pinned npm packages are not installed (npm ci in tests/interop/node)"
    if missing is None and node is not None:
        return node
    if os.environ.get("MOORLINE_REQUIRE_NODE") == "1":
        pytest.fail(f"{missing}, and MOORLINE_REQUIRE_NODE=1 asks for it")
    pytest.skip(str(missing))  # these peers exist only on Node; .ci/run requires them


@pytest.fixture(scope="session")
def node() -> str:
    """The path of `node`, with the pinned packages present."""
    return _node()


@attrs.frozen(slots=True)
class Moorline:
    """A running server: its base URL, its process and its log so far."""

    url: str
    process: subprocess.Popen[bytes]
    workspace: Path
    log: Path

    def stop(self) -> int:
        """SIGTERM, and the exit status; a server that does not go within 10 s is killed and fails the test."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            pytest.fail(f"the server ignored SIGTERM for {_STOP_TIMEOUT_S} s")


StartMoorline = Callable[..., Moorline]


def _bound_url(stdout: IO[bytes], process: subprocess.Popen[bytes], log: Path) -> str:
    """The URL of the line that announces the listener; the rest of stdout is read and dropped in the background."""
    found: list[str] = []
    announced = threading.Event()

    def read() -> None:
        for line in stdout:
            if match := _LISTENING.search(line.decode()):
                found.append(match[1])
                announced.set()
        announced.set()

    threading.Thread(target=read, daemon=True).start()
    announced.wait(_START_TIMEOUT_S)
    if not found:
        process.kill()
        process.wait()
        pytest.fail(f"the server did not start:\n{log.read_text()[-3000:]}")
    return found[0].rstrip("/")


@contextmanager
def _servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartMoorline]:
    """Starts servers on free ports, and ends those that still run."""
    running: list[Moorline] = []

    def start(*flags: str, agent: str = "demo", env: dict[str, str] | None = None) -> Moorline:
        root = tmp_path_factory.mktemp("moorline")
        workspace = root / "workspace"
        workspace.mkdir()
        log = root / "stderr.log"
        command = [sys.executable, "-m", "server", "--port", "0", "--agent", agent, "--workspace", str(workspace)]
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                [*command, *flags],
                cwd=HERE.parents[1],
                env={**os.environ, "MOORLINE_NNRP_PORT": "0", **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        assert process.stdout is not None
        server = Moorline(_bound_url(process.stdout, process, log), process, workspace, log)
        running.append(server)
        return server

    yield start
    for server in running:
        if server.process.poll() is None:
            assert server.stop() == 0, server.log.read_text()[-3000:]
        if server.process.stdout is not None:
            server.process.stdout.close()


@pytest.fixture(scope="module")
def start_moorline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartMoorline]:
    """`start_moorline(*flags, agent=..., env=...)`: a server on a free port; all are stopped when the module ends."""
    with _servers(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="session")
def moorline_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moorline]:
    """One server with the demo agent for all tests here, without a limit of sessions."""
    with _servers(tmp_path_factory) as start:
        yield start("--max-sessions", "0")


@pytest.fixture(scope="session")
def guarded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moorline]:
    """The same, which wants the token `interop-secret` for everything."""
    with _servers(tmp_path_factory) as start:
        yield start("--max-sessions", "0", "--token", "interop-secret", "--require-auth")


@pytest.fixture(scope="module")
def openai_stub() -> Iterator[OpenAIStub]:
    with OpenAIStub() as stub:
        yield stub


@attrs.frozen(slots=True)
class Check:
    """One line of a driver script."""

    check: str
    ok: bool
    ms: int = 0
    error: str | None = None


NodeRunner = Callable[..., list[Check]]


@pytest.fixture(scope="session")
def run_node(node: str) -> NodeRunner:
    """`run_node(script, server, *only, **env)`: runs a driver script to its end; every check must have passed."""

    def run(script: str, server: Moorline, *only: str, **env: str) -> list[Check]:
        settings: dict[str, str] = {"BASE_URL": server.url, "WORKSPACE": str(server.workspace), **env}
        done = subprocess.run(
            [node, script, *only],
            cwd=NODE_DIR,
            env={**os.environ, **settings},
            capture_output=True,
            timeout=240,
            check=False,
        )
        lines = [msgspec.json.decode(line, type=dict[str, Any]) for line in done.stdout.splitlines()]
        checks = [Check(**line) for line in lines]
        failed = [f"{check.check}: {check.error}" for check in checks if not check.ok]
        assert not failed, "\n".join(failed)
        assert done.returncode == 0, done.stderr.decode()[-3000:]
        return checks

    return run
