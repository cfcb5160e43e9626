"""One declaration per setting: flags, variables and file say the same, and what they may not say is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.config import SETTINGS, Config, ConfigError, is_loopback, load, unknown_variables
from server.limits import Kind, Setting, parse
from sessions.limits import Limits

BY_NAME = {declared.name: declared for declared in SETTINGS}
SERVED = [declared for declared in SETTINGS if declared.served]
WHOLE = [declared for declared in SERVED if declared.kind is Kind.WHOLE]

DAEMON_FLAGS = [
    "--port",
    "--hostname",
    "--token",
    "--workspace",
    "--event-ring-size",
    "--max-pending-prompts-per-session",
    "--prompt-deadline-ms",
    "--max-sessions",
    "--max-total-sessions",
    "--max-connections",
    "--allow-origin",
    "--require-auth",
    "--writer-idle-timeout-ms",
]
OUR_FLAGS = [
    "--agent",
    "--agent-per-session",
    "--upstream",
    "--upstream-model",
    "--upstream-key",
    "--session-grace-ms",
    "--connection-grace-ms",
    "--heartbeat-ms",
    "--max-queued-events",
    "--max-queued-bytes",
    "--ring-bytes",
    "--replay-bytes",
    "--max-subscribers",
    "--transports",
    "--max-acp-connections",
    "--permission-policy",
    "--max-pending-permissions",
    "--permission-timeout-ms",
    "--session-idle-ms",
    "--agent-start-timeout-ms",
    "--restore-timeout-ms",
    "--drain-ms",
    "--send-timeout-ms",
    "--max-body-bytes",
    "--affinity-cookie",
    "--ws-grace-ms",
    "--trust-proxy",
    "--tls-cert",
    "--tls-key",
    "--log-format",
    "--log-level",
]
NNRP_FLAGS = [
    "--nnrp-host",
    "--nnrp-port",
    "--nnrp-tls-port",
    "--nnrp-quic-port",
    "--nnrp-strict",
    "--nnrp-max-in-flight",
    "--nnrp-operation-credit",
    "--nnrp-resume-window-ms",
    "--nnrp-lease-ttl-ms",
    "--nnrp-handshake-timeout-ms",
    "--nnrp-idle-timeout-ms",
    "--nnrp-max-sessions-per-connection",
]
NOT_SERVED = [declared for declared in SETTINGS if not declared.served]


def refused(flags: dict[str, Any] | None = None, **more: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(flags, **{"environ": {}, **more})
    return str(caught.value)


# The table


@pytest.mark.parametrize("flag", DAEMON_FLAGS + OUR_FLAGS)
def test_flag_is_offered(flag: str) -> None:
    assert flag in [declared.flag for declared in SERVED]


@pytest.mark.parametrize("flag", NNRP_FLAGS)
def test_nnrp_setting_is_declared(flag: str) -> None:
    assert flag in [declared.flag for declared in SETTINGS]


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("port", 4170),
        ("hostname", "127.0.0.1"),
        ("event_ring_size", 8000),
        ("max_pending_prompts_per_session", 5),
        ("max_queued_events", 256),
        ("max_queued_bytes", 2 * 2**20),
        ("replay_bytes", 8 * 2**20),
        ("max_subscribers", 64),
        ("session_grace_ms", 10_000),
        ("connection_grace_ms", 10_000),
        ("max_acp_connections", 64),
        ("max_connections", 256),
        ("max_sessions", 32),
        ("max_total_sessions", 800),
        ("max_pending_permissions", 64),
        ("permission_timeout_ms", 0),
        ("prompt_deadline_ms", 0),
        ("heartbeat_ms", 15_000),
        ("max_body_bytes", 10 * 2**20),
        ("agent_start_timeout_ms", 10_000),
        ("restore_timeout_ms", 60_000),
        ("session_idle_ms", 1_800_000),
        ("transports", ("rest",)),
        ("nnrp_host", "127.0.0.1"),
        ("nnrp_resume_window_ms", 120_000),
        ("nnrp_lease_ttl_ms", 30_000),
        ("nnrp_handshake_timeout_ms", 10_000),
        ("nnrp_idle_timeout_ms", 120_000),
        ("permission_policy", "first-responder"),
    ],
)
def test_defaults(name: str, default: object) -> None:
    """acp-http 12, REST-014, REST-024."""
    assert getattr(load(environ={}), name) == default


def test_names_are_unique_and_documented() -> None:
    for attribute in ("name", "flag", "variable"):
        names = [getattr(declared, attribute) for declared in SETTINGS]
        assert len(set(names)) == len(names)
    assert all(declared.doc.endswith(".") for declared in SETTINGS)


@pytest.mark.parametrize(
    "declared", [each for each in SERVED if each.default not in (None, ())], ids=lambda each: each.name
)
def test_every_default_passes_its_own_check(declared: Setting) -> None:
    assert parse(declared, declared.default, declared.flag) == declared.default


def test_engine_defaults_are_the_tables() -> None:
    """One truth: the engine alone and the served engine have the same bounds."""
    assert load(environ={}).limits == Limits()


def test_engine_limits_are_in_seconds() -> None:
    limits = Config(session_grace_ms=1500, permission_timeout_ms=250, max_pending_prompts_per_session=0).limits
    assert (limits.session_grace, limits.permission_timeout, limits.max_pending_prompts) == (1.5, 0.25, 0)


# Where values come from


@pytest.mark.parametrize("declared", WHOLE, ids=lambda each: each.name)
def test_flag_before_variable_before_file(declared: Setting, tmp_path: Path) -> None:
    low = max(declared.minimum or 0, 1)
    file = tmp_path / "moorline.toml"
    file.write_text(f"{declared.key} = {low}\n")
    environ = {declared.variable: str(low + 1)}
    assert getattr(load(environ={}, file=str(file)), declared.name) == low
    assert getattr(load(environ=environ, file=str(file)), declared.name) == low + 1
    both = load({declared.name: str(low + 2)}, environ=environ, file=str(file))
    assert getattr(both, declared.name) == low + 2


def test_variables_that_look_like_settings() -> None:
    """A variable with a typing mistake is not passed over in silence; those of the client commands are not ours to judge."""
    environ = {declared.variable: "" for declared in SERVED} | {"MOORLINE_CONFIG": "", "MOORLINE_URL": "", "HOME": "/"}
    assert unknown_variables(environ) == []
    assert unknown_variables({**environ, "MOORLINE_RING_SIZE": "1", "MOORLINE_PROT": "1"}) == [
        "MOORLINE_PROT",
        "MOORLINE_RING_SIZE",
    ]


def test_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "moorline.toml"
    file.write_text(
        'event_ring_size = 40\nallow-origin = ["https://a.example", "https://b.example"]\nrequire-auth = true\n'
    )
    config = load(environ={"MOORLINE_CONFIG": str(file)})
    assert config.event_ring_size == 40
    assert config.allow_origin == ("https://a.example", "https://b.example")
    assert config.require_auth is True


def test_lists_and_switches_in_variables() -> None:
    config = load(
        environ={"MOORLINE_ALLOW_ORIGIN": "https://a.example, https://b.example", "MOORLINE_REQUIRE_AUTH": "yes"}
    )
    assert config.allow_origin == ("https://a.example", "https://b.example")
    assert config.require_auth is True


def test_token_variables() -> None:
    """ACP-251: QWEN_SERVER_TOKEN too; ours comes first."""
    assert load(environ={"QWEN_SERVER_TOKEN": "theirs"}).token == "theirs"
    assert load(environ={"QWEN_SERVER_TOKEN": "theirs", "MOORLINE_TOKEN": "ours"}).token == "ours"
    assert load(environ={"MOORLINE_TOKEN": ""}).token is None


def test_variables_of_others_are_ignored() -> None:
    assert load(environ={"MOORLINE_REQUIRE_NODE": "1", "PORT": "x"}) == load(environ={})


def test_workspaces_are_absolute_and_the_first_is_primary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """REST-020."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    assert load(environ={}).workspaces == (str(tmp_path),)
    assert load({"workspace": ("a", str(tmp_path), "a")}, environ={}).workspaces == (str(tmp_path / "a"), str(tmp_path))


# What is refused


@pytest.mark.parametrize(
    "raw",
    [
        *("-1", "1.5", "1e3", "", "five", "0x10", "１", "5 5", "NaN", "nan", "inf", "-inf", "Infinity"),
        *(-1, 1.5, True, None, float("nan"), float("inf")),
    ],
)
def test_prompt_limit_takes_whole_numbers_only(raw: object) -> None:
    """ACP-211: whatever is no whole number is refused with the flag's name, infinity too: 0 disables."""
    with pytest.raises(ConfigError, match="--max-pending-prompts-per-session: "):
        parse(BY_NAME["max_pending_prompts_per_session"], raw, "--max-pending-prompts-per-session")


@pytest.mark.parametrize("raw", ["0", 0])
def test_prompt_limit_can_be_off(raw: object) -> None:
    """ACP-211: 0 disables."""
    assert parse(BY_NAME["max_pending_prompts_per_session"], raw, "x") == 0


@pytest.mark.parametrize("declared", WHOLE, ids=lambda each: each.name)
def test_bounds_are_kept(declared: Setting) -> None:
    assert declared.flag in refused({declared.name: "-1"})
    assert declared.flag in refused({declared.name: "99999999999999999999999999"}) or declared.maximum is None
    if declared.maximum is not None:
        assert declared.flag in refused({declared.name: str(declared.maximum + 1)})
    if declared.minimum and not declared.zero:
        assert declared.flag in refused({declared.name: str(declared.minimum - 1)})
    if declared.zero:
        assert getattr(load({declared.name: "0"}, environ={}), declared.name) == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"allow_origin": ("*",)}, "--allow-origin: `*` needs a token"),
        ({"allow_origin": ("https://a.example/",)}, "--allow-origin: 'https://a.example/' is not an origin"),
        ({"allow_origin": ("HTTPS://a.example",)}, "--allow-origin"),
        ({"allow_origin": ("a.example",)}, "--allow-origin"),
        ({"permission_policy": "anarchy"}, "--permission-policy: must be one of first-responder, "),
        ({"transports": ("rest", "telepathy")}, "--transports: 'telepathy' is none of"),
        ({"trust_proxy": ("10.0.0.0/33",)}, "--trust-proxy"),
        ({"tls_cert": "/nowhere.pem"}, "--tls-cert: no such file"),
        ({"workspace": ("/nowhere",)}, "--workspace: no such directory"),
        ({"upstream": "localhost:8000"}, "--upstream"),
        ({"upstream": "http://localhost:8000", "agent": "x"}, "--upstream: cannot be combined with --agent"),
        ({"affinity_cookie": "a b"}, "--affinity-cookie"),
        ({"token": "two words"}, "--token"),
        ({"agent": '"open'}, "--agent"),
        ({"log_level": "loud"}, "--log-level"),
    ],
)
def test_bad_values_are_refused_by_name(flags: dict[str, Any], words: str) -> None:
    assert words in refused(flags)


def test_star_is_fine_with_a_token() -> None:
    """ACP-253."""
    assert load({"allow_origin": ("*",), "token": "t"}, environ={}).allow_origin == ("*",)


def test_tls_needs_both_files(tmp_path: Path) -> None:
    file = tmp_path / "some.pem"
    file.touch()
    assert refused({"tls_cert": str(file)}).startswith("--tls-key")
    assert refused({"tls_key": str(file)}).startswith("--tls-cert")


def test_errors_name_what_the_user_wrote(tmp_path: Path) -> None:
    file = tmp_path / "moorline.toml"
    assert refused(environ={"MOORLINE_PORT": "70000"}).startswith("MOORLINE_PORT: must be between 0 and 65535")
    assert refused(environ={"MOORLINE_ALLOW_ORIGIN": "*"}).startswith("MOORLINE_ALLOW_ORIGIN: ")
    file.write_text("max-sessions = -1")
    assert refused(file=str(file)).startswith("max-sessions (in ")
    file.write_text("max-session = 1")
    assert refused(file=str(file)).startswith("max-session: no such setting")
    for declared in NOT_SERVED:
        file.write_text(f"{declared.key} = 1")
        assert refused(file=str(file)).startswith(f"{declared.key}: no such setting")
    file.write_text("port = ")
    assert refused(file=str(file)).startswith("--config: cannot read")
    assert refused(file=str(tmp_path / "missing.toml")).startswith("--config: cannot read")
    file.write_bytes(b'agent = "\xff"')
    assert refused(file=str(file)).startswith("--config: cannot read")
    assert refused(file=str(tmp_path)).startswith("--config: cannot read")
    assert refused(environ={"MOORLINE_CONFIG": str(tmp_path)}).startswith("MOORLINE_CONFIG: cannot read")


@pytest.mark.parametrize("declared", [each for each in SETTINGS if each.kind is Kind.TEXT], ids=lambda each: each.name)
@pytest.mark.parametrize("blank", ["", "  "])
def test_an_empty_text_is_refused(declared: Setting, blank: str, tmp_path: Path) -> None:
    """Issue 2: bad values are refused by name. ``--token "$UNSET"`` must not serve without a token; an empty variable is none."""
    assert refused({declared.name: blank}).startswith(declared.flag)
    file = tmp_path / "moorline.toml"
    file.write_text(f'{declared.key} = "{blank}"')
    assert refused(file=str(file)).startswith(declared.key)
    assert load(environ={declared.variable: ""}) == load(environ={})


def test_a_number_without_end_is_refused_in_few_words() -> None:
    """The message says what is wrong with it, and does not repeat it."""
    text = refused({"max_sessions": "9" * 5000})
    assert text == "--max-sessions: must be 0 or at least 1, and of at most 20 digits"


def test_a_secret_is_not_repeated_in_errors() -> None:
    assert "s3cret" not in refused({"token": "s3cret and more"})


@given(
    st.sampled_from(SERVED),
    st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none(), st.lists(st.text())),
)
def test_any_value_is_either_taken_or_refused_by_name(declared: Setting, raw: object) -> None:
    try:
        parse(declared, raw, declared.flag)
    except ConfigError as error:
        assert str(error).startswith(declared.flag)  # noqa: PT017  # most values are fine


def test_config_is_frozen() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Config().port = 1  # type: ignore[misc]  # that it is refused is the point


# Loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.4.5", "localhost", "LOCALHOST", "::1", "[::1]"])
def test_loopback(host: str) -> None:
    """ACP-250."""
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "moorline.example", "", "localhost.evil.example", "128.0.0.1"]
)
def test_not_loopback(host: str) -> None:
    """ACP-250: what is not known to be loopback is not."""
    assert not is_loopback(host)
