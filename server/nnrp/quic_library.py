"""Whichever QUIC library is installed: qh3, which the extra names, or aioquic."""

from __future__ import annotations

import importlib
from typing import Any, Final

import attrs

__all__ = ["LIBRARIES", "QuicLibrary", "load_library"]

LIBRARIES: Final = ("qh3", "aioquic")
"""In the order they are looked for."""
CONNECTION_ID_BYTES: Final = 8
_VERSION_1: Final = 1
_DATAGRAM_BYTES: Final = 65_536


@attrs.frozen(slots=True)
class QuicLibrary:
    """What a listener needs of the library; connections themselves are `protocol.nnrp.quic_engine.QuicEngine`."""

    name: str
    make_connection: Any
    make_configuration: Any
    encode_retry: Any
    encode_version_negotiation: Any

    def server_configuration(self, certificate: str, key: str, *, alpn: str | None, idle_timeout: float) -> Any:
        """``alpn`` None: clients that offer none are served, and only they."""
        configuration = self.make_configuration(
            is_client=False,
            alpn_protocols=None if alpn is None else [alpn],
            connection_id_length=CONNECTION_ID_BYTES,
            idle_timeout=idle_timeout,
            max_datagram_frame_size=_DATAGRAM_BYTES,
            supported_versions=[_VERSION_1],
        )
        configuration.load_cert_chain(certificate, key)
        return configuration


def load_library(name: str | None = None) -> QuicLibrary:
    """The library ``name``, or the first that is installed. Raises ``RuntimeError`` naming the extra where there is none."""
    for each in LIBRARIES if name is None else (name,):
        try:
            connection = importlib.import_module(f"{each}.quic.connection")
            configuration = importlib.import_module(f"{each}.quic.configuration")
            packet = importlib.import_module(f"{each}.quic.packet")
        except ModuleNotFoundError:
            continue
        return QuicLibrary(
            each,
            connection.QuicConnection,
            configuration.QuicConfiguration,
            packet.encode_quic_retry,
            packet.encode_quic_version_negotiation,
        )
    raise RuntimeError("NNRP over QUIC needs the extra `quic`: pip install 'moorline[quic]'")
