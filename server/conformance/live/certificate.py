"""A certificate for a server of our own on loopback, signed by an authority made for it alone."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

__all__ = ["Certificate", "make_certificate"]

_DAY: Final = datetime.timedelta(days=1)


@attrs.frozen(slots=True)
class Certificate:
    """Files in PEM. ``authority``: whom a client has to trust."""

    certificate: str
    key: str
    authority: str


def make_certificate(directory: Path) -> Certificate:
    """For 127.0.0.1, valid for a day, the key in ``directory``. Raises ``ModuleNotFoundError`` without `cryptography`."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    root_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = _builder("moorline conformance", "moorline conformance", root_key, authority=True)
    place = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    leaf = _builder("127.0.0.1", "moorline conformance", key, authority=False).add_extension(place, critical=False)
    return Certificate(
        _write(directory / "server.pem", leaf.sign(root_key, hashes.SHA256())),
        _write(directory / "server-key.pem", key),
        _write(directory / "authority.pem", root.sign(root_key, hashes.SHA256())),
    )


def _builder(subject: str, issuer: str, key: ec.EllipticCurvePrivateKey, *, authority: bool) -> x509.CertificateBuilder:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    def name(common: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
    )


def _write(path: Path, made: x509.Certificate | ec.EllipticCurvePrivateKey) -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.x509 import Certificate as Made

    pem = serialization.Encoding.PEM
    if isinstance(made, Made):
        path.write_bytes(made.public_bytes(pem))
    else:
        form = serialization.PrivateFormat.PKCS8
        path.touch(mode=0o600)
        path.write_bytes(made.private_bytes(pem, form, serialization.NoEncryption()))
    return str(path)
