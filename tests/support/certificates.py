"""A self-signed certificate for localhost, made when it is needed."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path
from typing import Final

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["Certificate", "make_certificate", "make_signed_certificate"]


@attrs.frozen
class Certificate:
    cert: Path
    key: Path
    authority: Path | None = None
    """Who has signed it; None: itself."""

    def client_context(self, *alpn: str) -> ssl.SSLContext:
        """A client that trusts exactly this certificate, or who has signed it."""
        context = ssl.create_default_context(cafile=str(self.authority or self.cert))
        if alpn:
            context.set_alpn_protocols(list(alpn))
        return context


def make_certificate(directory: Path) -> Certificate:
    """One that has signed itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("localhost")
    made = _builder(name, name, key, authority=True).add_extension(_NAMES, critical=False).sign(key, hashes.SHA256())
    return Certificate(_write(directory / "cert.pem", made), _write(directory / "key.pem", key))


def make_signed_certificate(directory: Path) -> Certificate:
    """One that an authority has signed: some clients take no certificate that signs as that of a server."""
    root_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root_name = _name("moorline tests")
    root = (
        _builder(root_name, root_name, root_key, authority=True)
        .add_extension(_SIGNS, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(root_key.public_key()), critical=False)
        .sign(root_key, hashes.SHA256())
    )
    leaf = _builder(_name("localhost"), root_name, key, authority=False)
    # Python 3.13 asks who signed it by key, not only by name.
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key())
    made = (
        leaf.add_extension(_NAMES, critical=False).add_extension(signer, critical=False).sign(root_key, hashes.SHA256())
    )
    return Certificate(
        _write(directory / "leaf.pem", made),
        _write(directory / "leaf-key.pem", key),
        _write(directory / "authority.pem", root),
    )


_SIGNS: Final = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
_NAMES: Final = x509.SubjectAlternativeName(
    [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, authority: bool
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
    )


def _write(path: Path, made: x509.Certificate | ec.EllipticCurvePrivateKey) -> Path:
    if isinstance(made, x509.Certificate):
        path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    else:
        form = serialization.PrivateFormat.PKCS8
        path.write_bytes(made.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return path
