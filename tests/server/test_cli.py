"""The command: what it offers, how it refuses, what it costs to ask for help."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from server.cli import main
from server.commands.serve import serve
from server.config import SETTINGS
from server.limits import Kind, Setting

ROOT = Path(__file__).resolve().parents[2]


def test_help_names_the_commands() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert "serve" in result.output


def test_version() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert result.exit_code == 0
    assert result.output.startswith("moorline ")


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["serve", "--port", "x"]])
def test_asking_for_help_imports_no_server(arguments: list[str]) -> None:
    """Quart takes a third of a second: only what serves pays for it."""
    code = (
        "import sys; from server.cli import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit: pass\n"
        "heavy = {'quart', 'hypercorn', 'httpx2', 'qh3'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_served_setting_is_a_flag_and_no_other() -> None:
    result = CliRunner().invoke(main, ["serve", "--help"])
    for declared in SETTINGS:
        assert (f"{declared.flag} " in result.output or f"{declared.flag}\n" in result.output) == declared.served


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-pending-prompts-per-session", "-1"], "--max-pending-prompts-per-session: must be at least 0"),
        (["--max-pending-prompts-per-session", "1.5"], "--max-pending-prompts-per-session: must be a whole number"),
        (["--max-pending-prompts-per-session", "NaN"], "--max-pending-prompts-per-session: must be a whole number"),
        (["--port", "70000"], "--port: must be between 0 and 65535"),
        (["--allow-origin", "*"], "--allow-origin: `*` needs a token"),
        (["--config", "/nowhere.toml"], "--config: cannot read /nowhere.toml"),
        (["--no-such-flag"], "--no-such-flag"),
    ],
)
def test_bad_values_end_with_2_and_the_name(arguments: list[str], words: str) -> None:
    """ACP-211, and every other setting."""
    result = CliRunner().invoke(main, ["serve", *arguments])
    assert result.exit_code == 2
    assert words in result.output


@pytest.mark.parametrize("value", ["inf", "-inf", "Infinity", "nan", "NaN", "1e400"])
@pytest.mark.parametrize("declared", [each for each in SETTINGS if each.kind is Kind.WHOLE], ids=lambda each: each.key)
def test_no_flag_takes_infinity_or_nan(declared: Setting, value: str) -> None:
    """ACP-211: whole numbers only, 0 where it means unlimited."""
    result = CliRunner().invoke(main, ["serve", f"{declared.flag}={value}"])
    assert result.exit_code == 2
    assert f"{declared.flag}: must be a whole number" in result.output or not declared.served


def test_bad_variable_ends_with_2_and_its_name() -> None:
    result = CliRunner(env={"MOORLINE_PORT": "many"}).invoke(serve, [])
    assert result.exit_code == 2
    assert "MOORLINE_PORT: must be a whole number, not 'many'" in result.output


def test_unknown_command_ends_with_2() -> None:
    assert CliRunner().invoke(main, ["sail"]).exit_code == 2


@pytest.mark.parametrize("command", [["sessions"], ["prompt", "x"], ["attach", "x"], ["cancel", "x"], ["nnrp", "ping"]])
@pytest.mark.parametrize("library", ["httpx2", "httpcore2"])
def test_a_client_without_its_library_says_what_to_install(command: list[str], library: str) -> None:
    """Issue 2, extras: one line that names the extra, and exit code 1."""
    code = f"import sys; sys.modules[{library!r}] = None; from server.cli import main; main({command!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert done.stderr == f"Error: this command needs {library}: install moorline[client]\n"
