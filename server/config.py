"""Configuration: one declaration per setting, read from flags, environment and a TOML file, checked once, then frozen."""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from server.limits import ConfigError, Kind, Section, Setting, networks, parse, setting, settings_of

if TYPE_CHECKING:
    from sessions.limits import Limits

__all__ = [
    "FILE_VARIABLE",
    "NNRP_PORT",
    "SETTINGS",
    "Config",
    "ConfigError",
    "is_loopback",
    "load",
    "unknown_variables",
]

FILE_VARIABLE: Final = "MOORLINE_CONFIG"
"""Environment variable naming the TOML file; ``--config`` comes before it."""
CLIENT_VARIABLES: Final = ("MOORLINE_URL", "MOORLINE_NNRP_URL")
"""What the client commands read besides the token."""
NNRP_PORT: Final = 4171
"""TCP port of NNRP where nothing else is said (issue 5, Listeners)."""
_MIB: Final = 2**20
_DAY_MS: Final = 86_400_000
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+\Z")


def _origins(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if value != "*" and not _ORIGIN.match(value):
            raise ValueError(f"{value!r} is not an origin such as https://app.example (lower case, no path) or *")
    return values


def _transports(values: tuple[str, ...]) -> tuple[str, ...]:
    known = ("rest", "acp-http", "acp-ws")
    for value in values:
        if value not in known:
            raise ValueError(f"{value!r} is none of {', '.join(known)}")
    return tuple(dict.fromkeys(values))


def _existing_file(value: str | None) -> str | None:
    if value is not None and not Path(value).is_file():
        raise ValueError(f"no such file: {value}")
    return value


def _workspaces(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if not Path(value).expanduser().is_dir():
            raise ValueError(f"no such directory: {value}")
    return tuple(dict.fromkeys(str(Path(value).expanduser().resolve()) for value in values))


def _url(value: str | None) -> str | None:
    if value is not None and not re.match(r"https?://[^/\s]+", value):
        raise ValueError(f"{value!r} is not an http or https URL")
    return value


def _command_line(value: str | None) -> str:
    if value is None or not shlex.split(value):
        raise ValueError("must be a command line")
    return value


def _cookie(value: str | None) -> str | None:
    if value is not None and not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", value):
        raise ValueError(f"{value!r} is not a cookie name")
    return value


def _token(value: str | None) -> str | None:
    if value is not None and not re.fullmatch(r"[\x21-\x7e]+", value):
        raise ValueError("must be printable ASCII without spaces")
    return value


@attrs.frozen(slots=True, kw_only=True)
class Config:
    """Every setting of the process. Made by `load`; the constructor takes checked values (tests, embedding)."""

    # Listening and access
    hostname: str = setting(
        "127.0.0.1",
        "Address to listen on. Any other than a loopback address needs a token; without one a token is made and printed once.",
        section=Section.LISTEN,
        rule="ACP-250",
    )
    port: int = setting(
        4170,
        "TCP port of HTTP, WebSocket and event streams.",
        section=Section.LISTEN,
        minimum=0,
        maximum=65535,
        zero="any free port",
        rule="ACP-250",
    )
    token: str | None = setting(
        None,
        "Bearer token every request must carry.",
        section=Section.LISTEN,
        kind=Kind.TEXT,
        secret=True,
        variables=("QWEN_SERVER_TOKEN",),
        check=_token,
        rule="ACP-251",
    )
    require_auth: bool = setting(
        False, "Ask for the token on GET /health of a loopback bind too.", section=Section.LISTEN, rule="ACP-251"
    )
    allow_origin: tuple[str, ...] = setting(
        (),
        "Browser origin that may use the server (repeatable); `*` for all, which needs a token.",
        section=Section.LISTEN,
        check=_origins,
        rule="ACP-253, ACP-254",
    )
    trust_proxy: tuple[str, ...] = setting(
        (),
        "Network of reverse proxies whose Forwarded and X-Forwarded-* headers are believed (repeatable).",
        section=Section.LISTEN,
        check=networks,
    )
    tls_cert: str | None = setting(
        None,
        "Certificate chain (PEM). With --tls-key the port speaks TLS, HTTP/1.1 and HTTP/2.",
        section=Section.LISTEN,
        kind=Kind.TEXT,
        check=_existing_file,
    )
    tls_key: str | None = setting(
        None, "Private key (PEM) of --tls-cert.", section=Section.LISTEN, kind=Kind.TEXT, check=_existing_file
    )
    transports: tuple[str, ...] = setting(
        ("rest",),
        "Transports told to clients that choose one themselves: rest, acp-http, acp-ws. All are served in any case.",
        section=Section.LISTEN,
        check=_transports,
        rule="REST-014",
    )

    # What stands behind a session
    workspace: tuple[str, ...] = setting(
        (),
        "Directory sessions may work in (repeatable; the first is the primary one). Default: the current directory.",
        section=Section.AGENT,
        check=_workspaces,
        rule="REST-020",
    )
    agent: str = setting(
        "demo",
        "Command line of an ACP agent on stdio, or `demo` for the built-in one.",
        section=Section.AGENT,
        check=_command_line,
    )
    agent_per_session: bool = setting(
        False, "Start one agent process per session instead of one for all.", section=Section.AGENT
    )
    agent_start_timeout_ms: int = setting(
        10_000,
        "How long an agent may take to start and shake hands.",
        section=Section.AGENT,
        unit="ms",
        minimum=100,
        maximum=_DAY_MS,
        rule="REST-025",
    )
    upstream: str | None = setting(
        None,
        "Base URL of an OpenAI-compatible service to use instead of an agent.",
        section=Section.AGENT,
        kind=Kind.TEXT,
        check=_url,
    )
    upstream_model: str | None = setting(
        None, "Model name sent to --upstream. Default: the first it lists.", section=Section.AGENT, kind=Kind.TEXT
    )
    upstream_key: str | None = setting(
        None,
        "API key sent to --upstream.",
        section=Section.AGENT,
        kind=Kind.TEXT,
        secret=True,
        variables=("OPENAI_API_KEY",),
    )

    # Sessions
    max_sessions: int = setting(
        32, "Live sessions per workspace.", section=Section.SESSIONS, minimum=1, zero="unlimited", rule="REST-024"
    )
    max_total_sessions: int = setting(
        800, "Live sessions of the process.", section=Section.SESSIONS, minimum=1, zero="unlimited", rule="REST-024"
    )
    max_clients: int = setting(
        1024,
        "Client ids one session knows; beyond it the one not used for the longest time is forgotten.",
        section=Section.SESSIONS,
        minimum=1,
        zero="unlimited",
        rule="REST-004",
    )
    session_idle_ms: int = setting(
        1_800_000,
        "An unused session is closed after this time.",
        section=Section.SESSIONS,
        unit="ms",
        minimum=1,
        zero="never",
        rule="ACP-153",
    )
    restore_timeout_ms: int = setting(
        60_000,
        "How long loading or resuming a session may take.",
        section=Section.SESSIONS,
        unit="ms",
        minimum=1,
        maximum=_DAY_MS,
        rule="REST-033",
    )
    archived_sessions: int = setting(
        256,
        "Closed sessions that stay listed and loadable in the process.",
        section=Section.SESSIONS,
        minimum=0,
    )
    archived_bytes: int = setting(
        128 * _MIB, "Bytes of history they keep together.", section=Section.SESSIONS, unit="bytes", minimum=0
    )

    # Prompts and permissions
    max_pending_prompts_per_session: int = setting(
        5,
        "Accepted, unsettled prompts per session; the next is refused with 503 prompt_queue_full.",
        section=Section.PROMPTS,
        minimum=0,
        zero="unlimited",
        rule="ACP-210, ACP-211",
    )
    prompt_deadline_ms: int = setting(
        0,
        "Time a prompt may take from its acceptance.",
        section=Section.PROMPTS,
        unit="ms",
        minimum=1,
        zero="none",
        rule="ACP-215",
    )
    permission_policy: str = setting(
        "first-responder",
        "Whose vote decides on a permission request.",
        section=Section.PROMPTS,
        choices=("first-responder", "designated", "consensus", "local-only"),
        rule="REST-102",
    )
    permission_quorum: int = setting(
        2, "Equal votes that decide under the policy `consensus`.", section=Section.PROMPTS, minimum=1
    )
    max_pending_permissions: int = setting(
        64, "Unanswered permission requests per session.", section=Section.PROMPTS, minimum=1, rule="ACP-179"
    )
    permission_timeout_ms: int = setting(
        0,
        "An unanswered permission request is answered `cancelled` after this time.",
        section=Section.PROMPTS,
        unit="ms",
        minimum=1,
        zero="never",
        rule="ACP-179",
    )

    # Streams, replay and grace
    event_ring_size: int = setting(
        8000,
        "Events a session keeps for replay.",
        section=Section.STREAMS,
        minimum=1,
        maximum=1_000_000,
        rule="ACP-011",
    )
    ring_bytes: int = setting(
        64 * _MIB,
        "Bytes a session keeps for replay, encoded forms included.",
        section=Section.STREAMS,
        unit="bytes",
        minimum=1024,
    )
    replay_bytes: int = setting(
        8 * _MIB, "Most one reconnection replays.", section=Section.STREAMS, unit="bytes", minimum=1024, rule="ACP-015"
    )
    max_queued_events: int = setting(
        256,
        "Events a reader may fall behind before it is evicted.",
        section=Section.STREAMS,
        minimum=1,
        rule="ACP-017, ACP-018",
    )
    max_queued_bytes: int = setting(
        2 * _MIB,
        "Bytes a reader may fall behind before it is evicted.",
        section=Section.STREAMS,
        unit="bytes",
        minimum=1024,
        rule="ACP-017, ACP-018",
    )
    max_subscribers: int = setting(
        64, "Readers of one session.", section=Section.STREAMS, minimum=1, zero="unlimited", rule="ACP-017"
    )
    max_acp_connections: int = setting(
        64, "ACP connections of the process.", section=Section.STREAMS, minimum=1, zero="unlimited", rule="ACP-238"
    )
    session_grace_ms: int = setting(
        10_000,
        "How long a session binding outlives its stream.",
        section=Section.STREAMS,
        unit="ms",
        minimum=0,
        maximum=_DAY_MS,
        rule="ACP-140",
    )
    connection_grace_ms: int = setting(
        10_000,
        "How long an ACP connection outlives its connection stream.",
        section=Section.STREAMS,
        unit="ms",
        minimum=0,
        maximum=_DAY_MS,
        rule="ACP-140, ACP-150",
    )
    ws_grace_ms: int = setting(
        10_000,
        "How long the sessions of a lost WebSocket wait for a client that asked for it.",
        section=Section.STREAMS,
        unit="ms",
        minimum=0,
        maximum=_DAY_MS,
    )
    heartbeat_ms: int = setting(
        15_000,
        "A comment is sent on every event stream, and a ping on every WebSocket, at this interval.",
        section=Section.STREAMS,
        unit="ms",
        minimum=10,
        maximum=_DAY_MS,
        rule="ACP-092",
    )
    writer_idle_timeout_ms: int = setting(
        0,
        "An event stream whose peer takes longer than this to accept what was sent is evicted.",
        section=Section.STREAMS,
        unit="ms",
        minimum=100,
        maximum=_DAY_MS,
        zero="off",
        rule="REST-013",
    )
    affinity_cookie: str | None = setting(
        None,
        "Name of a cookie set on ACP connections, for load balancers.",
        section=Section.STREAMS,
        kind=Kind.TEXT,
        check=_cookie,
        rule="ACP-258",
    )

    # HTTP connections
    max_connections: int = setting(
        256,
        "Open sockets of the HTTP listener, and as many NNRP connections.",
        section=Section.HTTP,
        minimum=1,
        zero="unlimited",
        rule="acp-http 12",
    )
    max_body_bytes: int = setting(
        10 * _MIB,
        "Largest request body and largest WebSocket message.",
        section=Section.HTTP,
        unit="bytes",
        minimum=1024,
        rule="REST-001, ACP-237",
    )
    max_header_bytes: int = setting(
        32 * 1024, "Largest request head.", section=Section.HTTP, unit="bytes", minimum=1024, maximum=_MIB
    )
    request_head_timeout_ms: int = setting(
        10_000,
        "A request head must be complete this long after its first byte, and a new connection must send one.",
        section=Section.HTTP,
        unit="ms",
        minimum=100,
        maximum=_DAY_MS,
    )
    request_body_timeout_ms: int = setting(
        30_000,
        "A request body must be complete after this time, plus one second per 16 KiB of it that have come.",
        section=Section.HTTP,
        unit="ms",
        minimum=100,
        maximum=_DAY_MS,
    )
    keep_alive_ms: int = setting(
        65_000,
        "An idle connection is closed after this time.",
        section=Section.HTTP,
        unit="ms",
        minimum=1,
        maximum=_DAY_MS,
    )
    send_timeout_ms: int = setting(
        30_000,
        "A peer that accepts none of 64 KiB for this time is dropped.",
        section=Section.HTTP,
        unit="ms",
        minimum=100,
        maximum=_DAY_MS,
    )
    drain_ms: int = setting(
        4000,
        "On SIGTERM: time for streams to end and requests to finish before what is left is cut.",
        section=Section.HTTP,
        unit="ms",
        minimum=0,
        maximum=_DAY_MS,
    )

    # Logs
    log_format: str = setting(
        "text", "Form of the log on standard error.", section=Section.LOGS, choices=("text", "json")
    )
    log_level: str = setting(
        "info", "Least level that is logged.", section=Section.LOGS, choices=("debug", "info", "warning", "error")
    )

    # NNRP
    nnrp_host: str = setting("127.0.0.1", "Address of the NNRP listeners.", section=Section.NNRP)
    nnrp_off: bool = setting(
        False, "Serve no NNRP: neither its ports nor /nnrp on the HTTP port.", section=Section.NNRP
    )
    nnrp_port: int | None = setting(
        None,
        "TCP port of NNRP. Without it `moorline serve` takes 4171 where that is free; other starts open none.",
        section=Section.NNRP,
        kind=Kind.WHOLE,
        minimum=0,
        maximum=65535,
        zero="any free port",
        rule="nnrp-wire 2.2",
    )
    nnrp_tls_port: int | None = setting(
        None,
        "Port of NNRP over TLS 1.3, with --tls-cert and --tls-key.",
        section=Section.NNRP,
        kind=Kind.WHOLE,
        minimum=0,
        maximum=65535,
        zero="any free port",
        rule="nnrp-wire 2.3",
    )
    nnrp_quic_port: int | None = setting(
        None,
        "UDP port of NNRP over QUIC, with --tls-cert and --tls-key; needs the extra `quic`.",
        section=Section.NNRP,
        kind=Kind.WHOLE,
        minimum=0,
        maximum=65535,
        zero="any free port",
        rule="nnrp-wire 2.4",
    )
    nnrp_quic_alpn: str = setting(
        "nnrp/1",
        "What QUIC clients must offer; `none` negotiates nothing, for clients that offer nothing.",
        section=Section.NNRP,
        choices=("nnrp/1", "none"),
        rule="nnrp-wire 18 item 13",
    )
    nnrp_runner: str = setting(
        "agent",
        "What carries out NNRP operations: `agent`, the one behind every session, or `echo`, which returns each payload.",
        section=Section.NNRP,
        choices=("agent", "echo"),
    )
    nnrp_strict: bool = setting(
        False, "Refuse what only the tolerant dialects allow.", section=Section.NNRP, rule="nnrp-wire 2.6, 4"
    )
    nnrp_max_in_flight: int = setting(
        32,
        "Operations in flight per session; a client that asks for more is granted this.",
        section=Section.NNRP,
        minimum=1,
        maximum=65535,
        rule="nnrp-wire 13.2",
    )
    nnrp_operation_credit: int = setting(
        32,
        "Operations a session may submit ahead.",
        section=Section.NNRP,
        minimum=1,
        maximum=65535,
        rule="nnrp-wire 13.6",
    )
    nnrp_max_running: int = setting(
        256,
        "Operations carried out at once, over all sessions; the others wait for their turn by priority class.",
        section=Section.NNRP,
        minimum=1,
        maximum=65535,
        rule="nnrp-wire 13.5",
    )
    nnrp_max_interactive: int = setting(
        0,
        "Sessions of class interactive; those opened beyond it are lowered to balanced, and told so.",
        section=Section.NNRP,
        minimum=1,
        zero="no limit",
        rule="nnrp-wire 13.5",
    )
    nnrp_resume_window_ms: int = setting(
        120_000,
        "How long a session can be resumed after its transport was lost.",
        section=Section.NNRP,
        unit="ms",
        minimum=1,
        maximum=_DAY_MS,
        zero="no resume",
        rule="nnrp-wire 13.7",
    )
    nnrp_lease_ttl_ms: int = setting(
        30_000,
        "Life of a lease where the client names none.",
        section=Section.NNRP,
        unit="ms",
        minimum=1,
        maximum=_DAY_MS,
        rule="nnrp-wire 13.10",
    )
    nnrp_cache_bytes: int = setting(
        256 * 1024 * 1024,
        "Bytes of cache objects of all NNRP sessions together; a session has 8 MiB of them at most.",
        section=Section.NNRP,
        unit="bytes",
        minimum=1,
        rule="nnrp-wire 13.10",
    )
    nnrp_handshake_timeout_ms: int = setting(
        10_000,
        "A connection that has sent neither a hello nor a SESSION_OPEN is closed after this time.",
        section=Section.NNRP,
        unit="ms",
        minimum=1,
        maximum=_DAY_MS,
        rule="C-077",
    )
    nnrp_idle_timeout_ms: int = setting(
        120_000,
        "A connection on which nothing arrives is closed after this time.",
        section=Section.NNRP,
        unit="ms",
        minimum=1,
        maximum=_DAY_MS,
        rule="nnrp-wire 2.2",
    )
    nnrp_max_sessions_per_connection: int = setting(
        65_535,
        "Sessions of one connection; the next is refused with session_limit_reached.",
        section=Section.NNRP,
        minimum=1,
        rule="nnrp-wire 13.2",
    )

    def __attrs_post_init__(self) -> None:
        _require_consistent(self)

    @property
    def workspaces(self) -> tuple[str, ...]:
        """The directories sessions may work in, absolute; the first is the primary one."""
        return self.workspace or (str(Path.cwd()),)

    @property
    def loopback(self) -> bool:
        return is_loopback(self.hostname)

    @property
    def tls(self) -> bool:
        return self.tls_cert is not None

    @property
    def heartbeat(self) -> float:
        """Seconds."""
        return self.heartbeat_ms / 1000

    @property
    def limits(self) -> Limits:
        """The engine's bounds."""
        return _engine_limits(self)


SETTINGS: Final = settings_of(Config)
_BY_KEY: Final = {declared.key: declared for declared in SETTINGS}


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    file: str | None = None,
) -> Config:
    """The configuration from flags, then environment, then the TOML file, then defaults; the first that says something counts.

    ``flags`` maps setting names to raw values; None and an empty tuple mean "not given". ``file`` is ``--config``.
    Raises `ConfigError` naming the flag, variable or key.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for declared, raw, origin in (
        *_from_file(file, environ.get(FILE_VARIABLE)),
        *_from_environment(environ),
        *_from_flags(flags or {}),
    ):
        values[declared.name] = parse(declared, raw, origin)
        origins[declared.name] = origin
    try:
        return Config(**values)
    except ConfigError as error:
        # Rules about two settings name the flag; say it in the words in which the value was given.
        raise ConfigError(
            origins.get(error.origin.removeprefix("--").replace("-", "_"), error.origin), error.problem
        ) from None


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """Variables that are named like settings and are none: written wrongly, or made by an orchestrator for a service of this name."""
    known = {FILE_VARIABLE, *CLIENT_VARIABLES, *(declared.variable for declared in SETTINGS if declared.served)}
    environ = os.environ if environ is None else environ
    return sorted(name for name in environ if name.startswith("MOORLINE_") and name not in known)


def is_loopback(host: str) -> bool:
    """Whether listening on ``host`` can only be reached from this machine. A name other than localhost counts as no."""
    name = host.strip().strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


Source = tuple[Setting, Any, str]


def _from_flags(flags: Mapping[str, Any]) -> list[Source]:
    given = []
    for declared in SETTINGS:
        raw = flags.get(declared.name)
        if raw is not None and raw != ():
            given.append((declared, raw, declared.flag))
    return given


def _from_environment(environ: Mapping[str, str]) -> list[Source]:
    given = []
    for declared in SETTINGS:
        if not declared.served:
            continue
        for variable in (declared.variable, *declared.variables):
            # An empty variable is how a shell says "not set".
            if environ.get(variable, "") != "":
                given.append((declared, environ[variable], variable))
                break
    return given


def _from_file(flag: str | None, variable: str | None) -> list[Source]:
    path = flag or variable
    if not path:
        return []
    try:
        with Path(path).open("rb") as file:
            content = tomllib.load(file)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError("--config" if flag else FILE_VARIABLE, f"cannot read {path}: {error}") from None
    given = []
    for key, raw in content.items():
        declared = _BY_KEY.get(key.replace("_", "-"))
        if declared is None or not declared.served:
            raise ConfigError(key, f"no such setting (in {path})")
        given.append((declared, raw, f"{key} (in {path})"))
    return given


def _require_consistent(config: Config) -> None:
    if "*" in config.allow_origin and config.token is None:
        raise ConfigError("--allow-origin", "`*` needs a token (ACP-253)")
    if (config.tls_cert is None) != (config.tls_key is None):
        raise ConfigError("--tls-key" if config.tls_key is None else "--tls-cert", "needs its counterpart")
    if config.upstream is not None and config.agent != "demo":
        raise ConfigError("--upstream", "cannot be combined with --agent")


def _engine_limits(config: Config) -> Limits:
    from sessions.limits import Limits

    return Limits(
        event_ring_size=config.event_ring_size,
        ring_bytes=config.ring_bytes,
        max_pending_prompts=config.max_pending_prompts_per_session,
        max_queued_events=config.max_queued_events,
        max_queued_bytes=config.max_queued_bytes,
        replay_bytes=config.replay_bytes,
        max_subscribers=config.max_subscribers,
        max_clients=config.max_clients,
        session_grace=config.session_grace_ms / 1000,
        connection_grace=config.connection_grace_ms / 1000,
        max_sessions_per_workspace=config.max_sessions,
        max_total_sessions=config.max_total_sessions,
        max_pending_permissions=config.max_pending_permissions,
        permission_timeout=config.permission_timeout_ms / 1000,
        permission_quorum=config.permission_quorum,
        prompt_deadline=config.prompt_deadline_ms / 1000,
        session_idle=config.session_idle_ms / 1000,
        restore_timeout=config.restore_timeout_ms / 1000,
        archived_sessions=config.archived_sessions,
        archived_bytes=config.archived_bytes,
    )
