"""Files and terminals an agent asks for: inside the workspace, bounded, gone with the session (ACP-198)."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from server.backends.acp_stdio import terminals, workspace
from server.backends.acp_stdio.messages import INVALID_PARAMS, RESOURCE_NOT_FOUND
from server.backends.acp_stdio.spawn import SECRETS
from server.backends.acp_stdio.workspace import MethodError, Workspace
from tests.support.agents import Desk, alive, scripted_session, until, wait_gone
from tests.support.fake_host import run_prompt, texts
from tests.support.scripted_agent import steps


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    """The workspace; its parent holds what must stay out of reach."""
    root = tmp_path / "work"
    root.mkdir()
    (tmp_path / "secret").write_text("secret")
    (root / "hello.txt").write_text("one\ntwo\nthree\n")
    return root


def refused(call: Any, *args: Any) -> int:
    with pytest.raises(MethodError) as caught:
        call(*args)
    return caught.value.code


# Files


@pytest.mark.parametrize(
    ("line", "limit", "expected"),
    [
        (None, None, "one\ntwo\nthree\n"),
        (2, None, "two\nthree\n"),
        (None, 2, "one\ntwo\n"),
        (2, 1, "two\n"),
        (3, 100, "three\n"),
        (99, 1, ""),
        (1, 0, ""),
        (0, 1, "one\n"),
    ],
)
def test_read_lines(inside: Path, line: int | None, limit: int | None, expected: str) -> None:
    """``line`` is counted from 1."""
    assert Workspace(str(inside)).read_text(str(inside / "hello.txt"), line, limit) == expected


def test_a_negative_limit_is_refused(inside: Path) -> None:
    """ACP-198: not the lines that Python's slices would make of it."""
    assert refused(Workspace(str(inside)).read_text, str(inside / "hello.txt"), 1, -1) == INVALID_PARAMS


def test_read_and_write_follow_links_inside(inside: Path) -> None:
    (inside / "link").symlink_to("hello.txt")
    space = Workspace(str(inside))
    space.write_text(str(inside / "link"), "new")
    assert space.read_text(str(inside / "hello.txt")) == "new"
    assert (inside / "link").is_symlink()


def test_write_makes_directories_and_keeps_the_mode(inside: Path) -> None:
    space = Workspace(str(inside))
    space.write_text(str(inside / "a/b/c.txt"), "é")
    assert (inside / "a/b/c.txt").read_bytes() == "é".encode()
    (inside / "run").write_text("x")
    (inside / "run").chmod(0o755)
    space.write_text(str(inside / "run"), "y")
    assert (inside / "run").stat().st_mode & 0o777 == 0o755
    assert [path.name for path in (inside / "a/b").iterdir()] == ["c.txt"]


@pytest.mark.parametrize("name", ["../secret", "link", "linked/secret", "hello.txt/../../secret", "dangling"])
def test_nothing_outside_is_read_or_written(inside: Path, name: str) -> None:
    """Symlink escapes are refused, whichever way they go."""
    (inside / "link").symlink_to("../secret")
    (inside / "linked").symlink_to("..", target_is_directory=True)
    (inside / "dangling").symlink_to("../not-there-yet")
    space = Workspace(str(inside))
    assert refused(space.read_text, f"{inside}/{name}") == INVALID_PARAMS
    assert refused(space.write_text, f"{inside}/{name}", "x") == INVALID_PARAMS
    assert sorted(path.name for path in inside.parent.iterdir()) == ["secret", "work"]
    assert (inside.parent / "secret").read_text() == "secret"


def test_a_link_swapped_in_after_the_check_is_an_error(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between resolving and opening an attacker may swap a directory for a link: still no escape."""
    (inside / "dir").mkdir()
    (inside / "dir/f").write_text("mine")
    space = Workspace(str(inside))
    real = space.resolve

    def swap(path: str) -> str:
        relative = real(path)
        (inside / "dir/f").unlink(missing_ok=True)
        (inside / "dir").rmdir()
        (inside / "dir").symlink_to("..", target_is_directory=True)
        return relative

    monkeypatch.setattr(space, "resolve", swap)
    (inside.parent / "f").write_text("outside")
    assert refused(space.read_text, str(inside / "dir/f")) == INVALID_PARAMS


@pytest.mark.parametrize("path", ["relative.txt", "", "/a\0b"])
def test_paths_must_be_absolute(inside: Path, path: str) -> None:
    assert refused(Workspace(str(inside)).read_text, path) == INVALID_PARAMS


def test_missing_file_has_its_own_code(inside: Path) -> None:
    """Agents map -32002 to ENOENT, and nothing else."""
    assert refused(Workspace(str(inside)).read_text, str(inside / "none")) == RESOURCE_NOT_FOUND
    assert refused(Workspace(str(inside)).read_text, str(inside / "none/none")) == RESOURCE_NOT_FOUND


def test_only_regular_files(inside: Path) -> None:
    """A pipe would hang the reader, a directory is no text."""
    os.mkfifo(inside / "pipe")
    space = Workspace(str(inside))
    assert refused(space.read_text, str(inside / "pipe")) == INVALID_PARAMS
    assert refused(space.write_text, str(inside / "pipe"), "x") == INVALID_PARAMS
    assert refused(space.read_text, str(inside)) == INVALID_PARAMS


def test_a_directory_leaves_no_descriptor_open(inside: Path) -> None:
    """Issue 2, bad input: an agent that reads directories must not use up the server's descriptors."""
    (inside / "folder").mkdir()
    space = Workspace(str(inside))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        assert refused(space.read_text, str(inside / "folder")) == INVALID_PARAMS
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("name", ["漢" * 85, "é" * 127, "a" * 255], ids=["three bytes", "two bytes", "ascii"])
def test_names_as_long_as_names_can_be(inside: Path, name: str) -> None:
    Workspace(str(inside)).write_text(str(inside / name), "x")
    assert (inside / name).read_text() == "x"
    assert sorted(each.name for each in inside.iterdir()) == sorted(["hello.txt", name])


def test_sizes_are_bounded(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "FILE_LIMIT", 10)
    (inside / "big").write_text("x" * 11)
    space = Workspace(str(inside))
    assert refused(space.read_text, str(inside / "big")) == INVALID_PARAMS
    assert refused(space.write_text, str(inside / "new"), "é" * 6) == INVALID_PARAMS
    assert not (inside / "new").exists()


# Through an agent


@pytest.fixture
async def desk(inside: Path) -> AsyncIterator[Desk]:
    async with scripted_session(inside) as opened:
        yield opened


async def ask(desk: Desk, method: str, **params: Any) -> Any:
    await run_prompt(desk.session, steps(["request", method, params]))
    return json.loads(texts(desk.host)[-1])


@pytest.mark.process
async def test_files_through_the_agent(desk: Desk, inside: Path) -> None:
    assert await ask(desk, "fs/read_text_file", path=str(inside / "hello.txt"), line=1, limit=1) == {"content": "one\n"}
    assert await ask(desk, "fs/write_text_file", path=str(inside / "new"), content="x") == {}
    assert (inside / "new").read_text() == "x"
    assert (await ask(desk, "fs/read_text_file", path=str(inside / "no")))["error"]["code"] == RESOURCE_NOT_FOUND
    assert (await ask(desk, "fs/read_text_file", path=5))["error"]["code"] == INVALID_PARAMS
    assert (await ask(desk, "fs/read_text_file"))["error"]["code"] == INVALID_PARAMS
    unknown = await ask(desk, "fs/read_text_file", path=str(inside / "hello.txt"), sessionId="other")
    assert unknown["error"]["code"] == INVALID_PARAMS


@pytest.mark.process
async def test_files_not_offered_are_not_served(inside: Path) -> None:
    async with scripted_session(inside, offer_files=False) as desk:
        answer = await ask(desk, "fs/read_text_file", path=str(inside / "hello.txt"))
        assert answer["error"]["code"] == -32601


# Terminals


@pytest.mark.process
async def test_a_terminal_from_start_to_release(desk: Desk, inside: Path) -> None:
    env = [{"name": "GREETING", "value": "hi"}]
    made = await ask(desk, "terminal/create", command="sh", args=["-c", "echo $GREETING; pwd; exit 3"], env=env)
    terminal = made["terminalId"]
    assert await ask(desk, "terminal/wait_for_exit", terminalId=terminal) == {"exitCode": 3, "signal": None}
    output = await ask(desk, "terminal/output", terminalId=terminal)
    assert output == {"output": f"hi\n{inside}\n", "truncated": False, "exitStatus": {"exitCode": 3, "signal": None}}
    assert await ask(desk, "terminal/release", terminalId=terminal) == {}
    assert (await ask(desk, "terminal/output", terminalId=terminal))["error"]["code"] == RESOURCE_NOT_FOUND


@pytest.mark.process
async def test_the_servers_secrets_stay_with_the_server(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command an agent starts through us sees no more of our environment than the agent itself."""
    for secret in SECRETS:
        monkeypatch.setenv(secret, "hush-hush")
    monkeypatch.setenv("HARMLESS", "yes")
    made = await ask(desk, "terminal/create", command="env")
    await ask(desk, "terminal/wait_for_exit", terminalId=made["terminalId"])
    output = (await ask(desk, "terminal/output", terminalId=made["terminalId"]))["output"]
    assert ("hush-hush" in output, "HARMLESS=yes" in output) == (False, True)


@pytest.mark.process
async def test_a_command_without_arguments_may_be_a_shell_line(desk: Desk) -> None:
    made = await ask(desk, "terminal/create", command="echo one && echo two >&2")
    await ask(desk, "terminal/wait_for_exit", terminalId=made["terminalId"])
    assert (await ask(desk, "terminal/output", terminalId=made["terminalId"]))["output"] == "one\ntwo\n"


@pytest.mark.process
async def test_a_command_that_cannot_start(desk: Desk) -> None:
    answer = await ask(desk, "terminal/create", command="/no/such/program", args=["x"])
    assert answer["error"]["code"] == INVALID_PARAMS
    outside = await ask(desk, "terminal/create", command="ls", cwd="/")
    assert outside["error"]["code"] == INVALID_PARAMS


@pytest.mark.process
async def test_kill_takes_the_whole_group(desk: Desk) -> None:
    made = await ask(desk, "terminal/create", command="sleep 1000 & echo $!; sleep 1000")
    await until(lambda: desk.session.client_methods.terminals.get(made["terminalId"]).output()["output"])  # type: ignore[attr-defined]  # the runner's own session
    child = int((await ask(desk, "terminal/output", terminalId=made["terminalId"]))["output"])
    assert alive(child)
    assert await ask(desk, "terminal/kill", terminalId=made["terminalId"]) == {}
    ended = await ask(desk, "terminal/wait_for_exit", terminalId=made["terminalId"])
    assert ended == {"exitCode": None, "signal": "SIGTERM"}
    assert not alive(child)
    assert "exitStatus" in await ask(desk, "terminal/output", terminalId=made["terminalId"])


@pytest.mark.process
async def test_output_keeps_the_end_within_the_limit_at_a_character(desk: Desk) -> None:
    """Truncated from the beginning, never inside a character."""
    made = await ask(desk, "terminal/create", command="printf 'aaéé'", outputByteLimit=3)
    await ask(desk, "terminal/wait_for_exit", terminalId=made["terminalId"])
    output = await ask(desk, "terminal/output", terminalId=made["terminalId"])
    assert (output["output"], output["truncated"]) == ("é", True)
    made = await ask(desk, "terminal/create", command="head -c 5000000 /dev/zero | tr '\\0' x")
    await ask(desk, "terminal/wait_for_exit", terminalId=made["terminalId"])
    output = await ask(desk, "terminal/output", terminalId=made["terminalId"])
    assert (len(output["output"]), output["truncated"]) == (terminals.OUTPUT_LIMIT, True)


@pytest.mark.process
async def test_terminals_are_counted(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminals, "MAX_TERMINALS", 2)
    made = [await ask(desk, "terminal/create", command="true") for _ in range(3)]
    assert [("terminalId" in answer) for answer in made] == [True, True, False]
    await ask(desk, "terminal/release", terminalId=made[0]["terminalId"])
    assert "terminalId" in await ask(desk, "terminal/create", command="true")


@pytest.mark.process
async def test_terminals_end_with_their_session(inside: Path) -> None:
    """C-066: what a session's tools started does not outlive it, though the agent lives on."""
    async with scripted_session(inside, idle_timeout=60) as desk:
        made = await ask(desk, "terminal/create", command="echo $$; exec sleep 1000")
        await until(lambda: desk.session.client_methods.terminals.get(made["terminalId"]).output()["output"])  # type: ignore[attr-defined]  # the runner's own session
        pid = int((await ask(desk, "terminal/output", terminalId=made["terminalId"]))["output"])
        await desk.session.aclose()
        await wait_gone(pid)
        assert desk.runner.statistics().processes == 1
