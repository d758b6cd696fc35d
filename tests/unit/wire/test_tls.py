"""Files of TLS: read, refused, renewed while in use."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from headrace.core.errors import ConfigInvalid
from headrace.testing.certificates import Authority, mount
from headrace.wire.certificate import overdue, validity
from headrace.wire.secret import Secret
from headrace.wire.tls import ClientTls, ServerTls, TlsFiles, read

Content = dict[str, bytes]


@pytest.fixture(scope="module")
def authority() -> Authority:
    """Signs what these tests use."""
    return Authority()


def encrypted(content: Content) -> bytes:
    key = serialization.load_pem_private_key(content["tls.key"], None)
    how = serialization.BestAvailableEncryption(b"a password")
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)


BAD: dict[str, tuple[Callable[[Authority, Content], Content], str]] = {
    "expired": (lambda ca, good: ca.issue(ends_in_s=-60), "expired at"),
    "not_yet_valid": (lambda ca, good: ca.issue(begins_in_s=600, ends_in_s=6000), "is not valid before"),
    "key_of_another": (lambda ca, good: {**good, "tls.key": ca.issue()["tls.key"]}, "the key is not the certificate's"),
    "no_certificate": (lambda ca, good: {**good, "tls.crt": b"hello"}, "is not a PEM certificate"),
    "half_a_certificate": (lambda ca, good: {**good, "tls.crt": good["tls.crt"][:200]}, "is not a PEM certificate"),
    "garbage_in_pem": (
        lambda ca, good: {**good, "tls.crt": b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"},
        "is not a PEM certificate",
    ),
    "empty": (lambda ca, good: {**good, "tls.crt": b"", "tls.key": b""}, "is not a PEM certificate"),
    "no_key": (lambda ca, good: {**good, "tls.key": b"hello"}, "cannot be used for TLS"),
    "key_with_a_password": (lambda ca, good: {**good, "tls.key": encrypted(good)}, "without a password"),
    "no_ca": (lambda ca, good: {**good, "ca.crt": b"hello"}, "no PEM certificate to trust"),
}


@pytest.mark.parametrize("kind", BAD)
def test_files_that_cannot_be_used_are_refused_by_name(tmp_path: Path, authority: Authority, kind: str) -> None:
    make, words = BAD[kind]
    files = mount(tmp_path, make(authority, authority.issue()))
    with pytest.raises(ConfigInvalid, match=words) as caught:
        ServerTls(files, require_client=True)
    assert str(tmp_path) in str(caught.value) or "password" in words


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_certificate_leaves_the_one_before_in_use_and_is_counted_once(
    tmp_path: Path, authority: Authority, kind: str
) -> None:
    good = authority.issue()
    files = mount(tmp_path, good)
    told: list[str] = []
    tls = ServerTls(files, on_reload=told.append)
    mount(tmp_path, BAD[kind][0](authority, good))
    assert all(tls.newest().cert == good["tls.crt"] for _ in range(5))
    assert told == ["refused"]
    newer = authority.issue()
    mount(tmp_path, newer)
    assert tls.newest().cert == newer["tls.crt"]
    assert told == ["refused", "ok"]


def test_files_that_vanish_and_come_back(tmp_path: Path, authority: Authority) -> None:
    good = authority.issue()
    files = mount(tmp_path, good)
    told: list[str] = []
    tls = ServerTls(files, on_reload=told.append)
    for name in ("tls.crt", "tls.key"):
        Path(getattr(files, "cert" if name == "tls.crt" else "key")).unlink()
    assert all(tls.newest().cert == good["tls.crt"] for _ in range(5))
    assert told == ["refused"]
    newer = authority.issue()
    for name in ("tls.crt", "tls.key"):  # one after the other, as a person copies them
        (tmp_path / name).write_bytes(newer[name])
        assert tls.newest().cert in (good["tls.crt"], newer["tls.crt"])
    assert tls.newest().cert == newer["tls.crt"]
    assert told[-1] == "ok"


def test_a_client_keeps_what_was_of_use_and_tells_a_refused_change_once(tmp_path: Path, authority: Authority) -> None:
    tls = ClientTls(mount(tmp_path, authority.issue()))
    good = tls.stamp
    assert good is not None
    with structlog.testing.capture_logs() as logged:
        for _ in range(3):
            mount(tmp_path, {**authority.issue(), "tls.key": b"half"})
            for _ in range(4):
                tls.credentials()
                assert tls.stamp == good, "no channel is made anew for a change that cannot be used"
    assert [line["event"] for line in logged] == ["certificate_refused"] * 3
    mount(tmp_path, authority.issue())
    assert tls.stamp != good
    never = ClientTls(mount(tmp_path / "never", {**authority.issue(), "tls.key": b"half"}))
    assert never.stamp is None
    with pytest.raises(ConfigInvalid, match="cannot be used for TLS"):
        never.credentials()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match=r"nothing\.crt"):
        read(TlsFiles(str(tmp_path / "nothing.crt"), str(tmp_path / "nothing.key")))
    with pytest.raises(ConfigInvalid, match="go together"):
        TlsFiles(cert="a")
    with pytest.raises(ConfigInvalid, match="no tls_ca"):
        ServerTls(TlsFiles("a", "b"), require_client=True)
    with pytest.raises(ConfigInvalid, match="needs tls_ca"):
        ClientTls(TlsFiles())


@pytest.mark.parametrize("key", ["ec", "of_the_next_century"])
def test_validity_is_what_the_certificate_says(authority: Authority, key: str) -> None:
    ends_in_s = 86400 if key == "ec" else 86400 * 365 * 60  # after 2050 the time has another form
    pem = authority.issue(ends_in_s=ends_in_s)["tls.crt"]
    certificate = x509.load_pem_x509_certificate(pem)
    assert validity(b"a comment\n" + pem) == (
        certificate.not_valid_before_utc.timestamp(),
        certificate.not_valid_after_utc.timestamp(),
    )
    assert datetime.fromtimestamp(validity(pem)[1], UTC).year >= (2086 if key != "ec" else 2026)


def test_no_bytes_break_the_reader_of_certificates(authority: Authority) -> None:
    der = ssl.PEM_cert_to_DER_cert(authority.issue()["tls.crt"].decode())
    for cut in range(0, len(der), 7):
        for changed in (der[:cut], der[:cut] + b"\x84\xff\xff\xff\xff" + der[cut + 5 :], der[:cut] + b"\x80" + der[cut + 1 :]):
            try:
                validity(ssl.DER_cert_to_PEM_cert(changed).encode())
            except ValueError:
                continue


def test_each_http_connection_is_made_with_the_newest_certificate(tmp_path: Path, authority: Authority) -> None:
    files = mount(tmp_path, authority.issue())
    context = ServerTls(files).http_context()
    for _ in range(3):
        newer = authority.issue()
        mount(tmp_path, newer)
        assert served_by(context, authority.pem.decode()) == ssl.PEM_cert_to_DER_cert(newer["tls.crt"].decode())


@pytest.mark.parametrize("required", [False, True])
def test_http_asks_for_a_clients_certificate_where_that_is_required(
    tmp_path: Path, authority: Authority, required: bool
) -> None:
    tls = ServerTls(mount(tmp_path, authority.issue()), require_client_http=required)
    if required:
        with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
            served_by(tls.http_context(), authority.pem.decode())
    else:
        served_by(tls.http_context(), authority.pem.decode())


def served_by(context: ssl.SSLContext, authority: str) -> bytes | None:
    """The certificate that a client sees, over memory."""
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust.load_verify_locations(cadata=authority)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = trust.wrap_bio(to_client, to_server, server_hostname="localhost")
    done: set[object] = set()
    for _ in range(10):
        for side in (client, server):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                continue
        if len(done) == 2:
            return client.getpeercert(binary_form=True)
    raise AssertionError("no handshake")


def test_the_certificates_of_tests_are_what_they_should_be(authority: Authority) -> None:
    content = authority.issue(["a.example", "10.1.2.3"])
    key = serialization.load_pem_private_key(content["tls.key"], None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    names = x509.load_pem_x509_certificate(content["tls.crt"]).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == ["a.example"]


def test_the_readmes_commands_make_files_that_work(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    (commands,) = re.findall(r"```sh\n(mkdir -p secrets.*?)```", readme, re.DOTALL)
    subprocess.run(["sh", "-ec", commands], cwd=tmp_path, check=True, timeout=60, capture_output=True)
    made = tmp_path / "secrets"
    files = TlsFiles(str(made / "tls.crt"), str(made / "tls.key"), str(made / "ca.crt"))
    context = ServerTls(files, require_client=True).http_context()
    authority = (made / "ca.crt").read_text()
    assert served_by(context, authority) == ssl.PEM_cert_to_DER_cert((made / "tls.crt").read_text())
    for name in ("fleet", "admin", "job"):
        assert len(Secret(name, path=str(made / f"{name}.token")).tokens[0]) == 64


DAY_S = 86400.0


@pytest.mark.parametrize(
    ("life_s", "left_s", "told"),
    [
        (90 * DAY_S, 30 * DAY_S, False),
        (90 * DAY_S, 7.1 * DAY_S, False),
        (90 * DAY_S, 6.9 * DAY_S, True),
        (DAY_S, 0.34 * DAY_S, False),  # renewed at a third, as cert-manager does by itself
        (DAY_S, 0.2 * DAY_S, True),
        (3600.0, 1000.0, False),
        (3600.0, 800.0, True),
        (3600.0, -1.0, True),
    ],
)
def test_a_certificate_is_overdue_by_its_own_life(life_s: float, left_s: float, told: bool) -> None:
    """A week would call one of a day overdue for all of its life."""
    assert overdue(1000.0, 1000.0 + life_s, 1000.0 + life_s - left_s) is told
