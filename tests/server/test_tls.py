"""TLS on the port: HTTP/1.1 and HTTP/2 by ALPN, and the guard behind it."""

from __future__ import annotations

import ssl

import pytest
import trio

from server.config import Config
from server.telemetry import EndReason
from tests.support.certificates import Certificate, make_certificate
from tests.support.http import open_raw
from tests.support.http2 import Http2
from tests.support.serving import Served, serving, wait_until


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"))


def config(certificate: Certificate, **settings: int) -> Config:
    return Config(port=0, tls_cert=str(certificate.cert), tls_key=str(certificate.key), **settings)  # type: ignore[arg-type]  # whole numbers


async def assert_alive(served: Served, certificate: Certificate) -> None:
    async with open_raw(served.port, tls=certificate.client_context()) as raw:
        await raw.request("GET", "/health", Connection="close")
        assert (await raw.reply()).body == b'{"status":"ok"}'
        assert await raw.wait_end(within=2) == b""


async def test_http11_and_the_address_that_is_told(certificate: Certificate) -> None:
    async with serving(config(certificate)) as served:
        assert served.urls[0].startswith("https://127.0.0.1:")
        await assert_alive(served, certificate)
        async with open_raw(served.port, tls=certificate.client_context()) as raw:
            # Over TLS the server's own origin is an https one (ACP-253).
            await raw.request("GET", "/health", Origin=f"https://localhost:{served.port}")
            assert (await raw.reply()).status == 200
            await raw.request("GET", "/health", Origin=f"http://localhost:{served.port}")
            assert (await raw.reply()).status == 403


async def test_http2_streams_and_requests_on_one_connection(certificate: Certificate) -> None:
    context = certificate.client_context("h2", "http/1.1")
    async with serving(config(certificate)) as served, open_raw(served.port, tls=context) as raw:
        assert isinstance(raw.stream, trio.SSLStream)
        await raw.stream.do_handshake()
        assert raw.stream.selected_alpn_protocol() == "h2"
        client = Http2(raw)
        await client.start()
        streams = [client.open_stream("GET", "/try/ticks?n=20") for _ in range(20)]
        health = client.open_stream("GET", "/health")
        await client.flush()
        with trio.fail_after(5):
            assert await client.status(health) == 200
            for stream in streams:
                assert await client.end_of(stream) == "ended"
                assert client.bodies[stream].endswith(b"id: 20\ndata: 20\n\n")
        assert served.engine.open_streams == 0


async def test_http2_body_without_a_length(certificate: Certificate) -> None:
    """Legal over HTTP/2: no header announces it."""
    async with serving(config(certificate)) as served:
        async with open_raw(served.port, tls=certificate.client_context("h2")) as raw:
            client = Http2(raw)
            await client.start()
            stream = client.open_stream("POST", "/try/echo", end=False)
            await client.flush()
            await trio.sleep(0.05)
            client.connection.send_data(stream, b'{"a":', end_stream=False)
            client.connection.send_data(stream, b"1}", end_stream=True)
            await client.flush()
            with trio.fail_after(5):
                assert await client.end_of(stream) == "ended"
            assert client.bodies[stream] == b'{"a":1}'


async def test_a_failed_handshake_costs_one_connection(certificate: Certificate) -> None:
    async with serving(config(certificate)) as served:
        async with open_raw(served.port) as raw:
            await raw.send(b"GET / HTTP/1.1\r\n\r\n")
            await raw.wait_end(within=3)
        async with open_raw(served.port, tls=ssl.create_default_context()) as raw:
            with pytest.raises(trio.BrokenResourceError):
                await raw.send(b"x")
        await wait_until(lambda: served.application.guard_policy.ended[EndReason.HANDSHAKE_FAILED] == 2)
        await assert_alive(served, certificate)


async def test_a_handshake_that_is_never_begun_is_cut(certificate: Certificate) -> None:
    async with serving(config(certificate, request_head_timeout_ms=400)) as served, open_raw(served.port) as raw:
        await raw.wait_end(within=3)


async def test_a_stalled_reader_is_dropped_and_does_not_delay_the_end(certificate: Certificate) -> None:
    async with serving(config(certificate)) as served:
        async with open_raw(served.port, tls=certificate.client_context(), receive_buffer=4096) as raw:
            await raw.request("GET", "/try/flood")
            await wait_until(lambda: served.engine.open_streams == 1)
            await trio.sleep(0.3)
            served.stop.set()
            with trio.fail_after(4):
                await served.ended.wait()
