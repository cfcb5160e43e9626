"""``moorline nnrp ping``, ``submit``, ``watch`` and ``bench``: the NNRP client on the command line."""

from __future__ import annotations

import contextlib
import statistics
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click
import trio

from server.commands.client_rendering import harmless

if TYPE_CHECKING:
    from client.nnrp import NnrpConnection, NnrpSession

__all__ = ["bench", "ping", "submit", "watch"]

_DIALECTS = click.Choice(["native", "nnrp-py", "nnrp-rs"])


def _connection_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(
        [
            click.option("--url", envvar="MOORLINE_NNRP_URL", default="tcp://127.0.0.1:4171", show_default=True,
                         help="The server: tcp://, tls://, ws://, wss:// or quic:// and host:port. Also MOORLINE_NNRP_URL."),
            click.option("--ca-file", type=click.Path(exists=True, dir_okay=False),
                         help="Whose certificates to trust (PEM), instead of those of the system."),
            click.option("--token", envvar="MOORLINE_TOKEN", help="Token of the server. Also MOORLINE_TOKEN."),
            click.option("--dialect", type=_DIALECTS, default="native", show_default=True, help="What the server is."),
        ]
    ):  # fmt: skip
        command = option(command)
    return command


@click.command()
@click.option("--count", default=4, show_default=True, type=click.IntRange(1, 100_000), help="How many.")
@_connection_options
def ping(count: int, **where: Any) -> None:
    """Measure the time a PING takes. Exits with 1 when the server cannot be reached or refuses."""

    async def run(connection: NnrpConnection) -> None:
        times = []
        for number in range(count):
            seconds = await connection.ping()
            times.append(seconds)
            click.echo(f"{number + 1}: {seconds * 1000:.3f} ms")
        click.echo(f"median {statistics.median(times) * 1000:.3f} ms of {count}")

    _run(run, where)


@click.command()
@click.argument("text")
@_connection_options
def submit(text: str, **where: Any) -> None:
    """Submit TEXT as one operation and print its result as it comes. ``-`` reads TEXT from standard input.

    Exits with 1 when the operation fails or the server refuses. Ctrl-C cancels the operation.
    """
    data = sys.stdin.buffer.read() if text == "-" else text.encode("utf-8")

    async def run(connection: NnrpConnection) -> None:
        session = await connection.open_session()
        await _print_results(session, data)

    _run(run, where)


@click.command()
@click.argument("texts", nargs=-1, required=True)
@_connection_options
def watch(texts: tuple[str, ...], **where: Any) -> None:
    """Submit every one of TEXTS at once in a session that can be resumed, and tell every event with its time.

    A lost connection is made again; what happened meanwhile is told then. Exits with 1 when an operation fails.
    """

    async def run(connection: NnrpConnection) -> None:
        session = await connection.open_session(resumable=True)
        began = trio.current_time()
        failures: list[str] = []

        async def follow(text: str) -> None:
            submission = await session.submit(text.encode("utf-8"))
            name = f"{submission.operation_id:>4}"
            try:
                async for result in submission:
                    since = trio.current_time() - began
                    state = result.state.name.lower()
                    click.echo(f"{since:8.3f}  {name}  {state:<12} {harmless(result.data.decode('utf-8', 'replace'))}")
            except Exception as problem:
                _tell_or_raise(problem)
                click.echo(f"{trio.current_time() - began:8.3f}  {name}  {problem}")
                failures.append(name)

        async with trio.open_nursery() as nursery:
            for text in texts:
                nursery.start_soon(follow, text)
        if failures:
            raise SystemExit(1)

    _run(run, where)


@click.command()
@click.option("--count", default=2000, show_default=True, type=click.IntRange(1, 10_000_000), help="Operations.")
@click.option("--in-flight", default=32, show_default=True, type=click.IntRange(1, 65_535), help="At the same time.")
@click.option("--size", default=64, show_default=True, type=click.IntRange(0, 16 * 2**20), help="Bytes of a payload.")
@_connection_options
def bench(count: int, in_flight: int, size: int, **where: Any) -> None:
    """Submit operations and measure: operations and bytes per second, and how long each took."""

    async def run(connection: NnrpConnection) -> None:
        from protocol.nnrp.enums import OperationFeatures

        session = await connection.open_session(max_in_flight=in_flight, features=OperationFeatures(0))
        data, left, times = b"x" * size, count, []

        async def one_after_another() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                began = trio.current_time()
                await (await session.submit(data)).result()
                times.append(trio.current_time() - began)

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(in_flight):
                nursery.start_soon(one_after_another)
        seconds = trio.current_time() - began
        times.sort()
        click.echo(f"{count} operations of {size} bytes, {in_flight} in flight: {seconds:.3f} s")
        click.echo(f"{count / seconds:.0f} operations/s, {2 * count * size / seconds / 1e6:.1f} MB/s both ways")
        click.echo(
            f"median {statistics.median(times) * 1000:.3f} ms, p99 {times[int(len(times) * 0.99)] * 1000:.3f} ms"
            if len(times) > 1
            else f"{times[0] * 1000:.3f} ms"
        )

    _run(run, where)


async def _print_results(session: NnrpSession, data: bytes) -> None:
    submission = await session.submit(data)
    with contextlib.ExitStack() as stack:
        stack.callback(click.echo)  # an error has a line of its own
        stack.callback(submission.cancel)
        async for result in submission:
            click.echo(harmless(result.data.decode("utf-8", "replace")), nl=False)


def _tell_or_raise(problem: Exception) -> None:
    from client.nnrp import NnrpClientError

    if not isinstance(problem, NnrpClientError):
        raise problem


def _run(use: Callable[[NnrpConnection], Awaitable[None]], where: dict[str, Any]) -> None:
    from client.nnrp import NnrpClientError, NnrpOptions, open_nnrp

    async def run() -> None:
        options = NnrpOptions(token=where["token"], dialect=where["dialect"], ca_file=where["ca_file"])
        async with open_nnrp(where["url"], options) as connection:
            await use(connection)

    failures: list[str] = []
    try:
        trio.run(run)
    except* NnrpClientError as errors:
        failures += [str(each) for each in _leaves(errors)]
    except* ValueError as errors:
        failures += [str(each) for each in _leaves(errors)]
    except* SystemExit:
        raise SystemExit(1) from None
    except* KeyboardInterrupt:
        raise SystemExit(130) from None
    if failures:
        raise click.ClickException("; ".join(dict.fromkeys(failures)))


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]
    return [error]
