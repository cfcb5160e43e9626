"""NNRP as a part of the server: configuration, the agent behind it, the drain, and the commands that use it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from click.testing import CliRunner

from client.nnrp import (
    NnrpClientError,
    NnrpConnectionLost,
    NnrpOperationEnded,
    NnrpOptions,
    open_nnrp,
    probe_transports,
)
from protocol.nnrp.enums import ErrorCode, OperationState, StopReason, TokenChannel
from server.application import Application
from server.cli import main
from server.config import NNRP_PORT, Config
from server.nnrp.serving import NnrpServing
from server.serve import serve
from sessions.errors import SessionLimitExceeded
from tests.support.certificates import make_certificate, make_signed_certificate
from tests.support.nnrp_transports import serving_everywhere


@asynccontextmanager
async def serving(tmp_path: Path, **settings: Any) -> AsyncIterator[tuple[Application, str]]:
    config = attrs.evolve(Config(workspace=(str(tmp_path),), nnrp_port=0), **settings)
    application = Application(config, announce=lambda _: None)
    async with application.running():
        assert isinstance(application.nnrp, NnrpServing)
        host, port = application.nnrp.addresses[0]
        yield application, f"tcp://{host}:{port}"


async def test_without_a_port_nothing_listens(tmp_path: Path) -> None:
    """docs/nnrp.md: a program that embeds the application opens no port it did not name; --nnrp-off serves no NNRP at all."""
    application = Application(Config(workspace=(str(tmp_path),)))
    async with application.running():
        assert application.nnrp is not None
        assert application.nnrp.addresses == ()
    application = Application(Config(workspace=(str(tmp_path),), nnrp_off=True), nnrp_port=0)
    async with application.running():
        assert application.nnrp is None


async def test_the_default_port(tmp_path: Path) -> None:
    """Issue 5, Listeners: TCP is served on a default port; taken, it is a line in the log, where one that was asked for is an
    error. 4171 itself is not tried here: somebody may have it."""
    assert NNRP_PORT == 4171
    first = Application(Config(workspace=(str(tmp_path),)), nnrp_port=0)
    async with first.running():
        assert first.nnrp is not None
        ((_, taken),) = first.nnrp.addresses
        second = Application(Config(workspace=(str(tmp_path),)), nnrp_port=taken)
        async with second.running():
            assert second.nnrp is not None
            assert second.nnrp.addresses == ()
        asked = Application(Config(workspace=(str(tmp_path),), nnrp_port=taken))
        with pytest.RaisesGroup(OSError, flatten_subgroups=True, allow_unwrapped=True):
            async with asked.running():
                pass


async def test_an_agent_answers_in_token_chunks(tmp_path: Path) -> None:
    """Issue 5, Runners; nnrp-extensions, Token chunks: contiguous positions per channel, a stop reason at the end."""
    async with serving(tmp_path) as (application, url), open_nnrp(url) as connection:
        session = await connection.open_session()
        results = [each async for each in await session.submit(b"long=4")]
        hints = [each.hint for each in results]
        said = [each for each in results if each.hint is not None and each.hint.channel is TokenChannel.MESSAGE]
        assert "".join(each.text for each in said).split() == ["w0", "w1", "w2", "w3"]
        position = 0
        for each in said:
            assert each.hint is not None
            assert each.hint.sequence_start == position
            position = each.hint.sequence_end
        assert hints[-1] is not None
        assert hints[-1].stop_reason is StopReason.EOS
        assert any(each is not None and each.channel is TokenChannel.THOUGHT for each in hints) or len(hints) >= 4
        assert [each.event_id for each in results] == sorted({each.event_id for each in results})
        assert application.nnrp is not None
        (served,) = application.nnrp.service.sessions
        assert served.worker is not None


async def test_a_failed_and_a_cancelled_turn(tmp_path: Path) -> None:
    """nnrp-wire 13.4: a turn that fails is a drop, failed; a cancel reaches the agent, and the next prompt is answered."""
    async with serving(tmp_path) as (_, url), open_nnrp(url) as connection:
        session = await connection.open_session()
        with pytest.raises(NnrpOperationEnded) as failed:
            await session.request(b"fail")
        assert failed.value.state is OperationState.FAILED
        held = await session.submit(b"hold")
        await anext(held)
        held.cancel()
        with pytest.raises(NnrpOperationEnded) as cancelled:
            await held.result()
        assert cancelled.value.state is OperationState.CANCELLED
        assert (await session.request(b"echo after")).final


async def test_credit_is_what_the_engine_admits(tmp_path: Path) -> None:
    """Architecture 1: admission is credit on this wire. More submits than pending prompts wait, none is refused."""
    async with serving(tmp_path, max_pending_prompts_per_session=2) as (_, url), open_nnrp(url) as connection:
        session = await connection.open_session()
        assert session.machine.terms.max_in_flight_operations == 2
        done = []

        async def one(number: int) -> None:
            done.append((await session.request(b"echo %d" % number)).final)

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(one, number)
        assert done == [True] * 6


async def test_nnrp_sessions_do_not_count_as_sessions(tmp_path: Path) -> None:
    """Issue 5, Server: --max-sessions neither counts nor refuses them; they are listed like any other."""
    async with serving(tmp_path, max_sessions=1) as (application, url), open_nnrp(url) as connection:
        for _ in range(3):
            await (await connection.open_session()).request(b"echo x")
        assert application.nnrp is not None
        harbour = next(iter(application.nnrp.service.sessions)).worker._harbour  # type: ignore[union-attr]  # an AgentWorker
        assert len(harbour.sessions) == 3
        await harbour.create(str(tmp_path))
        with pytest.raises(SessionLimitExceeded):
            await harbour.create(str(tmp_path))


async def test_an_agent_that_cannot_be_started_is_not_busy(tmp_path: Path) -> None:
    """nnrp-wire 12.9: server_busy invites to try again, and that would not help."""
    async with serving(tmp_path, agent="/nowhere/agent") as (_, url), open_nnrp(url) as connection:
        session = await connection.open_session()
        with pytest.raises(NnrpOperationEnded) as failed:
            await session.request(b"hello")
    assert failed.value.code == ErrorCode.INTERNAL_ERROR


async def test_tls(tmp_path: Path) -> None:
    """nnrp-wire 2.3: TLS 1.3, ALPN nnrp/1 before nnrp/1-tcp, none accepted."""
    made = make_certificate(tmp_path)
    settings = {"nnrp_tls_port": 0, "tls_cert": str(made.cert), "tls_key": str(made.key), "nnrp_runner": "echo"}
    async with serving(tmp_path, **settings) as (application, _):
        assert application.nnrp is not None
        host, port = application.nnrp.secured[0]
        for offered, chosen in ((("nnrp/1-tcp", "nnrp/1"), "nnrp/1"), (("nnrp/1-tcp",), "nnrp/1-tcp"), ((), None)):

            async def connect(_: str, __: int, offered: tuple[str, ...] = offered, chosen: Any = chosen) -> Any:
                stream = trio.SSLStream(
                    await trio.open_tcp_stream(host, port), made.client_context(*offered), server_hostname="127.0.0.1"
                )
                await stream.do_handshake()
                assert stream.version() == "TLSv1.3"
                assert stream.selected_alpn_protocol() == chosen
                return stream

            async with open_nnrp("tcp://ignored", NnrpOptions(connect=connect)) as connection:
                assert (await (await connection.open_session()).request(bytes(300_000))).data == bytes(300_000)


async def test_quic_and_websocket_beside_http(tmp_path: Path) -> None:
    """Issue 5, Listeners: --nnrp-quic-port with the certificate of the server, and /nnrp, in one process; a session that is
    lost on one comes back on the other, and the drain closes both with CLOSE."""
    made = make_signed_certificate(tmp_path)
    config = Config(
        workspace=(str(tmp_path),),
        port=0,
        nnrp_runner="echo",
        nnrp_quic_port=0,
        tls_cert=str(made.cert),
        tls_key=str(made.key),
        drain_ms=2000,
    )
    application = Application(config, announce=lambda _: None)
    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(partial(serve, config, application=application))
        assert application.nnrp is not None
        ((host, port),) = application.nnrp.quic
        web = url.replace("https", "wss")
        options = NnrpOptions(ca_file=str(made.authority))
        async with open_nnrp(f"quic://{host}:{port}", options) as connection, open_nnrp(web, options) as other:
            session = await connection.open_session(resumable=True)
            running = await session.submit(b"sleep=100;moved")
            await connection.migrate(web)
            assert (await running.result()).data == b"sleep=100;moved"
            await connection.migrate(f"quic://{host}:{port}")
            assert (await session.request(b"back")).data == b"back"
            assert {each.transport for each in application.nnrp.service.links} == {"quic", "websocket"}
            application.drain.begin()
            with trio.fail_after(20):
                while connection.connected or other.connected:  # noqa: ASYNC110  # no event says so
                    await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


async def test_quic_needs_a_certificate(tmp_path: Path) -> None:
    """Issue 5, Listeners: what is asked for and cannot be had is an error, with the flags in it."""
    application = Application(Config(workspace=(str(tmp_path),), nnrp_quic_port=0))
    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="--tls-cert"), flatten_subgroups=True):
        async with application.running():
            pass


async def test_gauges(tmp_path: Path) -> None:
    """nnrp-wire 14: connections, sessions, operations in GET /metrics."""
    async with serving(tmp_path, nnrp_runner="echo") as (application, url), open_nnrp(url) as connection:
        session = await connection.open_session()
        running = await session.submit(b"sleep=60000;")
        await connection.ping()
        assert application.nnrp is not None
        values = {each.name: each.samples[0].value for each in application.nnrp.service.gauges()}
        assert values["moorline_nnrp_connections"] == values["moorline_nnrp_sessions"] == 1
        assert values["moorline_nnrp_operations"] == 1
        running.cancel()


async def test_a_tensor_is_not_for_an_agent(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, url), open_nnrp(url) as connection:
        with pytest.raises(NnrpClientError):
            await connection.open_session(profile_id=1, schema=(0, 0))


async def test_the_drain_closes_connections_and_ends_operations(tmp_path: Path) -> None:
    """C-063 on this wire: what runs is ended, clients are told with CLOSE, nothing is left."""
    async with serving(tmp_path, nnrp_runner="echo", drain_ms=2000) as (application, url):
        assert application.nnrp is not None
        service = application.nnrp.service
        async with open_nnrp(url, NnrpOptions(reconnect=None)) as connection:
            session = await connection.open_session()
            short, long = await session.submit(b"sleep=100;ends"), await session.submit(b"sleep=60000;")
            with trio.fail_after(5):
                while service.statistics().operations < 2:  # noqa: ASYNC110  # no event says so
                    await trio.sleep(0.002)
            application.drain.begin()
            assert (await short.result()).data == b"sleep=100;ends"
            with pytest.raises(NnrpClientError):
                await long.result()
            with trio.fail_after(5):
                while service.links or service.statistics().operations:  # noqa: ASYNC110  # no event says so
                    await trio.sleep(0.01)


async def test_a_listener_others_can_reach_needs_a_token(tmp_path: Path) -> None:
    """ACP-250 on this wire."""
    application = Application(Config(workspace=(str(tmp_path),), nnrp_port=0, nnrp_host="0.0.0.0"))
    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="token"), flatten_subgroups=True):
        async with application.running():
            pass


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ping", "--count", "2"], "median"),
        (["submit", "hello there"], "hello there"),
        (["watch", "partial=2;ab", "sleep=1;c"], "completed"),
        (["bench", "--count", "200", "--in-flight", "8"], "operations/s"),
    ],
    ids=["ping", "submit", "watch", "bench"],
)
async def test_the_commands(tmp_path: Path, arguments: list[str], said: str) -> None:
    """Issue 5, Client and commands."""
    async with serving(tmp_path, nnrp_runner="echo") as (_, url):
        command = ["nnrp", arguments[0], "--url", url, *arguments[1:]]
        result = await trio.to_thread.run_sync(lambda: CliRunner().invoke(main, command))
    assert result.exit_code == 0, result.output
    assert said in result.output


async def test_a_command_says_why_it_failed(tmp_path: Path) -> None:
    async with serving(tmp_path, nnrp_runner="echo") as (_, url):
        command = ["nnrp", "submit", "--url", url, "fail;"]
        result = await trio.to_thread.run_sync(lambda: CliRunner().invoke(main, command))
    assert result.exit_code == 1
    assert result.output.endswith("\nError: the operation failed: internal_error (0x000c)\n")


async def test_ping_says_that_nnrp_rs_answers_none(tmp_path: Path) -> None:
    """nnrp-wire 2.6: never send PING to that peer."""
    async with serving(tmp_path, nnrp_runner="echo") as (_, url):
        command = ["nnrp", "ping", "--url", url, "--dialect", "nnrp-rs"]
        result = await trio.to_thread.run_sync(lambda: CliRunner().invoke(main, command))
    assert (result.exit_code, result.output) == (1, "Error: this server answers no PING\n")


@pytest.mark.parametrize("transport", ["tls", "wss", "quic", "aioquic"])
async def test_a_certificate_that_is_not_trusted_is_named_as_the_reason(tmp_path: Path, transport: str) -> None:
    async with serving_everywhere(tmp_path, only=[transport]) as place:
        with pytest.raises(NnrpConnectionLost, match=r"(?i)certificate"):
            await probe_transports([place.urls[transport]])
        with pytest.raises(NnrpConnectionLost, match=r"(?i)certificate"):
            async with open_nnrp(place.urls[transport]):
                pass


async def test_a_server_that_says_nothing_is_named_as_the_reason(tmp_path: Path) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        port = listener.socket.getsockname()[1]
        with pytest.raises(NnrpConnectionLost, match="no answer in time"):
            async with open_nnrp(f"tls://127.0.0.1:{port}", NnrpOptions(open_timeout=0.2)):
                pass


def test_a_ca_file_that_is_not_there_is_named() -> None:
    result = CliRunner().invoke(main, ["nnrp", "ping", "--url", "tls://127.0.0.1:1", "--ca-file", "nowhere.pem"])
    assert result.exit_code == 2
    assert "nowhere.pem" in result.output


@pytest.mark.parametrize("name", ["nnrp_port", "nnrp_tls_port", "nnrp_quic_port"])
async def test_a_port_that_cannot_be_had_is_named(tmp_path: Path, name: str) -> None:
    made = make_certificate(tmp_path)
    taken = socket.socket(type=socket.SOCK_DGRAM if name == "nnrp_quic_port" else socket.SOCK_STREAM)
    with taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        asked = {"nnrp_port": 0, "tls_cert": str(made.cert), "tls_key": str(made.key), name: port}
        application = Application(Config(workspace=(str(tmp_path),), **asked))
        said = f"--{name.replace('_', '-')}: cannot listen on 127.0.0.1:{port}: "
        with pytest.RaisesGroup(pytest.RaisesExc(OSError, match=said), flatten_subgroups=True):
            async with application.running():
                pass
