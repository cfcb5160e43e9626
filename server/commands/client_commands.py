"""``moorline prompt``, ``attach``, ``sessions`` and ``cancel``: the client on the command line.

The client and its HTTP library are imported when a command runs, so that asking for help costs nothing.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click
import msgspec
import trio

from server.commands.client_rendering import Printer, harmless

if TYPE_CHECKING:
    from client import DaemonClient, DaemonSessionClient, Event, EventStream

__all__ = ["attach", "cancel", "prompt", "sessions"]

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells expect."""
PIPE_CLOSED = 141
"""Exit code when the reader of our output has gone, as shells report it."""
LAST_EVENTS = 2.0
"""Seconds to wait for the events of a turn whose outcome is known already."""

_TRANSPORTS = click.Choice(["rest", "acp-http", "acp-ws"])


def _connection_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(
        [
            click.option("--url", envvar="MOORLINE_URL", default="http://127.0.0.1:4170", show_default=True,
                         help="The server. Also MOORLINE_URL."),
            click.option("--token", help="Bearer token. Also MOORLINE_TOKEN or QWEN_SERVER_TOKEN."),
            click.option("--transport", type=_TRANSPORTS, default="rest", show_default=True, help="How to speak to it."),
            click.option("--verbose", "-v", is_flag=True, help="Say on stderr when a stream is lost and found again."),
        ]
    ):  # fmt: skip
        command = option(command)
    return command


@click.command()
@click.argument("text")
@click.option("--session", help="Go on in this session instead of a new one.")
@click.option("--cwd", help="Workspace of a new session.")
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON lines.")
@click.option("--quiet", "-q", is_flag=True, help="Print only what the agent says.")
@click.option(
    "--permission",
    type=click.Choice(["ask", "allow", "deny"]),
    help="What to answer when the agent asks. Default: ask on a terminal, else deny.",
)
@_connection_options
def prompt(
    text: str, session: str | None, cwd: str | None, as_json: bool, quiet: bool, permission: str | None, **where: Any
) -> None:
    """Send TEXT to an agent and print what it does until its turn ends.

    Exits with 0 if the turn ended, 1 if it failed or the server refused. Ctrl-C cancels the turn.
    """
    answer = permission or ("ask" if sys.stdin.isatty() else "deny")

    async def run(client: DaemonClient) -> int:
        async with await _session(client, session, cwd) as joined:
            return await _prompt(joined, text, Printer(json=as_json, quiet=quiet), answer, as_json)

    _run(run, where)


@click.command()
@click.argument("session")
@click.option("--from", "cursor", type=click.IntRange(min=0), help="Begin after this event instead of the beginning.")
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON lines.")
@_connection_options
def attach(session: str, cursor: int | None, as_json: bool, **where: Any) -> None:
    """Follow SESSION live, from its beginning on, through network failures and server restarts, until it is closed."""

    async def run(client: DaemonClient) -> int:
        from client import DaemonSessionClient

        async with await DaemonSessionClient.resume(client, session) as joined:
            await _follow(joined, Printer(json=as_json), cursor or 0)
        return 0

    _run(run, where, patient=True)


@click.command()
@click.option("--cwd", help="Workspace; by default the server's first.")
@click.option("--size", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
@_connection_options
def sessions(cwd: str | None, size: int, as_json: bool, **where: Any) -> None:
    """List the sessions of a workspace, newest first."""

    async def run(client: DaemonClient) -> int:
        page = await client.list_sessions(cwd, size=size)
        for entry in page.sessions:
            if as_json:
                click.echo(msgspec.json.encode(entry.raw).decode())
                continue
            state = click.style("busy", fg="green") if entry.has_active_prompt else "idle"
            columns = (entry.session_id, state, entry.updated_at or "", entry.display_name or "")
            click.echo("  ".join(harmless(column) if column is not state else column for column in columns).rstrip())
        return 0

    _run(run, where)


@click.command()
@click.argument("session")
@_connection_options
def cancel(session: str, **where: Any) -> None:
    """End the running prompt of SESSION. Prompts that wait stay."""

    async def run(client: DaemonClient) -> int:
        from client import DaemonSessionClient, TransportKind

        if client.transport.kind is TransportKind.REST:
            await client.cancel(session)
            return 0
        # On /acp only an owner may cancel.
        async with await DaemonSessionClient.resume(client, session) as joined:
            await joined.cancel()
        return 0

    _run(run, where)


def _run(work: Callable[[DaemonClient], Awaitable[int]], where: dict[str, Any], *, patient: bool = False) -> None:
    """Run ``work`` with a client and exit with its code; errors become one line, Ctrl-C becomes a cancelled scope."""
    from client import DaemonError, SseFramingError

    if where["verbose"]:
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="moorline: %(message)s")
    codes: list[int] = []
    try:
        trio.run(_work, work, where, patient, codes)
    except* (DaemonError, SseFramingError) as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        click.echo(click.style(f"moorline: {harmless(str(error))}", fg="red"), err=True)
        codes.append(1)
    except* BrokenPipeError:
        # Whoever read has seen enough; the interpreter must not try to flush the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        codes.append(PIPE_CLOSED)
    sys.exit(codes[-1])


async def _work(
    work: Callable[[DaemonClient], Awaitable[int]], where: dict[str, Any], patient: bool, codes: list[int]
) -> None:
    from client import ReconnectPolicy, open_daemon_client

    policy = ReconnectPolicy(give_up_after=math.inf) if patient else ReconnectPolicy()
    with trio.open_signal_receiver(signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                async for _ in signals:
                    codes.append(INTERRUPTED)
                    nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            async with open_daemon_client(
                where["url"], token=where["token"], transport=where["transport"], reconnect=policy
            ) as client:
                codes.append(await work(client))
            nursery.cancel_scope.cancel()


async def _session(client: DaemonClient, session: str | None, cwd: str | None) -> DaemonSessionClient:
    from client import DaemonSessionClient, SessionRequest

    if session is not None:
        return await DaemonSessionClient.resume(client, session)
    return await DaemonSessionClient.create_or_attach(client, SessionRequest(cwd=cwd, scope="thread"))


async def _prompt(session: DaemonSessionClient, text: str, printer: Printer, permission: str, as_json: bool) -> int:
    from client import DaemonTurnError

    ended = trio.Event()
    async with session.events() as events, trio.open_nursery() as nursery:
        nursery.start_soon(_print_turn, session, events, printer, permission, ended)
        stop_reason: str | None = None
        # If the turn fails, its last event says why.
        with contextlib.suppress(DaemonTurnError):
            stop_reason = (await session.prompt(text)).stop_reason
        with trio.move_on_after(LAST_EVENTS):
            await ended.wait()
        printer.end_text()
        if as_json and stop_reason is not None:
            click.echo(msgspec.json.encode({"type": "result", "stopReason": stop_reason}).decode())
        nursery.cancel_scope.cancel()
    return 0 if stop_reason is not None else 1


async def _print_turn(
    session: DaemonSessionClient, events: EventStream, printer: Printer, permission: str, ended: trio.Event
) -> None:
    async for event in events:
        printer.show(event)
        if event.type == "permission_request" and event.request_id is not None:
            await session.vote(event.request_id, await _choose(event, permission, printer))
        if event.type in ("turn_complete", "turn_error"):
            ended.set()


async def _follow(session: DaemonSessionClient, printer: Printer, cursor: int) -> None:
    async with session.events(cursor=cursor) as events:
        async for event in events:
            printer.show(event)
            sys.stdout.flush()
    printer.end_text()


async def _choose(event: Event, permission: str, printer: Printer) -> str | None:
    """The option to choose, ``None`` to cancel the request."""
    options = [option for option in event.data.get("options", []) if isinstance(option, dict)]
    if permission == "ask":
        printer.end_text()
        given = await trio.to_thread.run_sync(_ask, options, abandon_on_cancel=True)
        return given if any(option.get("optionId") == given for option in options) else None
    wanted = "allow_once" if permission == "allow" else "reject_once"
    found = (option.get("optionId") for option in options if option.get("kind") == wanted)
    return next((str(option_id) for option_id in found), None)


def _ask(options: list[dict[str, Any]]) -> str:
    for option in options:
        click.echo(f"  {harmless(str(option.get('optionId')))}  {harmless(str(option.get('name')))}", err=True)
    return sys.stdin.readline().strip()
