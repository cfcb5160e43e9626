"""Two QUIC connections over a link in virtual time: what the engine makes of the libraries under loss (nnrp-wire 2.4)."""

from __future__ import annotations

import heapq
import importlib
import itertools
import random
from collections import Counter
from typing import Any

import pytest

from protocol.nnrp.quic_engine import QuicEngine
from tests.support.certificates import Certificate, make_signed_certificate
from tests.support.udp_relay import Weather

ADDRESSES = {True: ("127.0.0.1", 1), False: ("127.0.0.1", 2)}
CLEAR = Weather(0.0, 0.0, 0.0, 0.0)
ROUND_TRIP = 0.0004


class End:
    """One connection, and what has come on its streams."""

    def __init__(self, library: str, certificate: Certificate, initial: bytes | None = None, **settings: Any) -> None:
        self.is_client = initial is None
        connection = importlib.import_module(f"{library}.quic.connection").QuicConnection
        configuration = importlib.import_module(f"{library}.quic.configuration").QuicConfiguration(
            is_client=self.is_client,
            alpn_protocols=["nnrp/1"],
            server_name="localhost" if self.is_client else None,
            supported_versions=[1],
            **settings,
        )
        if initial is None:
            configuration.load_verify_locations(cafile=str(certificate.authority))
            self.connection = connection(configuration=configuration)
        else:
            configuration.load_cert_chain(str(certificate.cert), str(certificate.key))
            original = initial[6 : 6 + initial[5]]
            self.connection = connection(configuration=configuration, original_destination_connection_id=original)
        self.engine = QuicEngine(self.connection)
        self.connected = False
        self.came: Counter[int] = Counter()
        self.ended: list[int] = []
        self.failed: str | None = None

    def take(self) -> None:
        for event in self.engine.events():
            name = type(event).__name__
            if name == "HandshakeCompleted":
                self.connected = True
            elif name == "StreamDataReceived":
                self.came[event.stream_id] += len(event.data)
                if event.end_stream:
                    self.ended.append(event.stream_id)
            elif name == "ConnectionTerminated":
                self.failed = event.reason_phrase

    def submit(self, data: bytes) -> int:
        stream_id = self.engine.open(uni=True)
        self.engine.send(stream_id, data, end=True)
        return stream_id


class Link:
    """Both ends, connected; ``weather`` may be changed. Datagrams that are due together come in the order they were sent."""

    def __init__(self, libraries: tuple[str, str], certificate: Certificate, seed: int = 0, **settings: Any) -> None:
        self.weather = CLEAR
        self.now = 1000.0
        self._random = random.Random(seed)
        self._under_way: list[tuple[float, int, bool, bytes]] = []
        self._numbers = itertools.count()
        self.client = End(libraries[0], certificate)
        self.client.engine.connect(ADDRESSES[False], self.now)
        initial = self.client.engine.transmit(self.now)
        self.server = End(libraries[1], certificate, initial[0][0], **settings)
        for data, _ in initial:
            self._put(True, data)
        while not (self.client.connected and self.server.connected):
            self.step()

    def step(self) -> None:
        """The next thing that happens: a datagram comes, or a timer is due."""
        due = [(self._under_way[0][0], None)] if self._under_way else []
        timers = [(end.engine.timer(), end) for end in (self.client, self.server)]
        due_timers = [(when, end) for when, end in timers if when is not None]
        when, end = min([*due, *due_timers], key=lambda each: each[0])
        # aioquic subtracts where others add, and may be early by a rounding error.
        self.now = max(self.now, when) + (0.0 if end is None else 1e-6)
        if end is None:
            _, _, to_server, data = heapq.heappop(self._under_way)
            end = self.server if to_server else self.client
            end.engine.receive(data, ADDRESSES[not end.is_client], self.now)
        else:
            end.engine.handle_timer(self.now)
        end.take()
        self.flush(end)

    def flush(self, end: End) -> None:
        for data, _ in end.engine.transmit(self.now):
            self._put(end.is_client, data)

    def _put(self, to_server: bool, data: bytes) -> None:
        weather, chance = self.weather, self._random.random
        for _ in range(2 if chance() < weather.twice else 1):
            if chance() < weather.lost:
                continue
            late = chance() * weather.delay if chance() < weather.late else 0.0
            when = self.now + ROUND_TRIP / 2 + late
            heapq.heappush(self._under_way, (when, next(self._numbers), to_server, data))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_signed_certificate(tmp_path_factory.mktemp("quic"))


@pytest.mark.parametrize("libraries", [("qh3", "qh3"), ("qh3", "aioquic"), ("aioquic", "aioquic")])
def test_bulk_both_ways_in_bad_weather(certificate: Certificate, libraries: tuple[str, str]) -> None:
    """600 KB each way, five times: everything comes, and neither end is kept waiting by the other until a probe timeout (the
    seconds are those of the link)."""
    count, size, elapsed = 20, 30_000, 0.0
    for seed in range(5):
        link = Link(libraries, certificate, seed)
        link.weather = Weather()
        began, answered = link.now, 0
        for _ in range(count):
            link.client.submit(bytes(size))
        link.flush(link.client)
        while len(link.client.ended) < count:
            link.step()
            assert (link.client.failed, link.server.failed) == (None, None)
            for _ in link.server.ended[answered:]:
                link.server.submit(bytes(size))
            if answered < len(link.server.ended):
                answered = len(link.server.ended)
                link.flush(link.server)
        assert set(link.client.came.values()) == set(link.server.came.values()) == {size}
        elapsed += link.now - began
    assert elapsed < 10


def test_a_stream_without_credit_does_not_hold_up_others(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RFC 9000, 4.1: credit is a matter of each stream; what the library holds for one that has none takes no room of others."""
    monkeypatch.setattr("aioquic.quic.connection.QuicConnection._write_stream_limits", lambda *_, **__: None)
    credit = 40_000
    link = Link(("qh3", "aioquic"), certificate, max_stream_data=credit)
    stuck = link.client.submit(bytes(20 * credit))
    link.flush(link.client)
    while link.server.came[stuck] < credit or link.client.engine.in_flight:
        link.step()
    others = [link.client.submit(bytes(credit // 2)) for _ in range(3)]
    link.flush(link.client)
    began = link.now
    while len(link.server.ended) < 3:
        link.step()
    assert sorted(link.server.ended) == others
    assert link.now - began < 5, "before the idle timeout"
    assert link.server.came[stuck] == credit


class Window:
    """As much of qh3 as is asked how much it may send: ``room`` beside the datagram that is left free."""

    def __init__(self, room: int) -> None:
        self.congestion_window = room + 1472  # a datagram
        self.bytes_in_flight = 0
        self.fed: list[tuple[int, int, bool]] = []
        self._core = self

    def get_send_buffer_size(self, stream_id: int | None = None) -> int:
        return 0

    def get_timer(self) -> tuple[str, float]:
        return "loss_detection", 0.0

    def send_stream_data(self, stream_id: int, data: bytes, end: bool) -> None:
        self.bytes_in_flight += len(data)
        if data or end:
            self.fed.append((stream_id, len(data), end))

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, tuple[str, int]]]:
        return []

    def acknowledge(self, engine: QuicEngine) -> list[tuple[int, int, bool]]:
        """Everything has arrived; what is sent next."""
        self.bytes_in_flight = 0
        self.fed.clear()
        engine.transmit(0.0)
        return list(self.fed)


def test_streams_have_their_turns() -> None:
    """What waits goes out in turns of 64 KiB per stream, control before anything, an end with the last of its stream; what the
    peer has stopped does not go at all."""
    window = Window(48 * 1024)
    engine = QuicEngine(window)
    kib = 1024
    engine.send(3, bytes(100 * kib), end=True)
    engine.send(7, bytes(20 * kib))
    engine.send(11, bytes(20 * kib))
    assert window.acknowledge(engine) == [(3, 48 * kib, False)]
    engine.send(0, bytes(kib))
    engine.send(7, b"", end=True)
    engine.forget(11)
    assert engine.queued == 73 * kib
    assert window.acknowledge(engine) == [(0, kib, False), (3, 47 * kib, False)]
    assert window.acknowledge(engine) == [(3, 5 * kib, True), (7, 20 * kib, True)]
    assert engine.queued == 0
    engine.send(15, bytes(kib), end=True)
    assert window.fed[-1] == (15, kib, True), "nothing waits, and there is room"
