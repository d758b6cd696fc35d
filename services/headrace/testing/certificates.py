"""A certificate authority of a test, and files laid out as Kubernetes mounts a Secret: swapped by a link, all at once.

Needs the package cryptography (the extra `test`). Keys are made anew for each test and never leave its directory.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from headrace.wire.tls import TlsFiles

_LOCAL = ("localhost", "127.0.0.1")
_numbers = itertools.count(1)


class Authority:
    """Signs certificates."""

    def __init__(self, name: str = "test authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(self._name, self._name, self._key.public_key(), -3600, 7 * 86400)
        authority = x509.BasicConstraints(ca=True, path_length=None)
        self._certificate = builder.add_extension(authority, critical=True).sign(self._key, hashes.SHA256())

    @property
    def pem(self) -> bytes:
        """ca.crt."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, hosts: Sequence[str] = _LOCAL, *, begins_in_s: float = -3600, ends_in_s: float = 86400) -> dict[str, bytes]:
        """tls.crt, tls.key and ca.crt of a new key, valid for these names and addresses, for servers and for clients."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
        builder = _builder(name, self._name, key.public_key(), begins_in_s, ends_in_s)
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        certificate = builder.add_extension(names, critical=False).sign(self._key, hashes.SHA256())
        encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
        return {
            "tls.crt": certificate.public_bytes(encoding),
            "tls.key": key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain),
            "ca.crt": self.pem,
        }


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, begins_in_s: float, ends_in_s: float
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(seconds=begins_in_s))
        .not_valid_after(now + timedelta(seconds=ends_in_s))
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def mount(directory: Path, content: dict[str, bytes]) -> TlsFiles:
    """Put files there, or others in their place at one moment, as a kubelet does. Returns the paths, which stay the same."""
    version = directory / f"..version-{next(_numbers)}"
    version.mkdir(parents=True)
    for name, data in content.items():
        (version / name).touch(mode=0o600)
        (version / name).write_bytes(data)
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(Path("..data") / name)
    (directory / "..new").symlink_to(version.name)
    (directory / "..new").replace(directory / "..data")
    return paths(directory)


def paths(directory: Path) -> TlsFiles:
    """Where the files of a mounted certificate lie."""
    return TlsFiles(*(str(directory / name) for name in ("tls.crt", "tls.key", "ca.crt")))
