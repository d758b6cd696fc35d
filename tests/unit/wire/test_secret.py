"""Tokens: read, replaced, compared, never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.client.security import SecurityOptions
from headrace.core import limits
from headrace.core.errors import ConfigInvalid, Unauthenticated
from headrace.testing.certificates import mount
from headrace.wire.calls import Calls
from headrace.wire.messages import PROTOCOL, Hello, decode, encode
from headrace.wire.secret import Secret, is_loopback, refuse_plaintext, secret, shown, well_formed

OLD, NEW = "old-token-0123456789", "new-token-0123456789"


def test_a_file_is_read_again_and_may_hold_the_old_token_too(tmp_path: Path) -> None:
    mount(tmp_path, {"token": OLD.encode()})
    kept = Secret("token_file", path=str(tmp_path / "token"))
    assert kept.tokens == (OLD,)
    mount(tmp_path, {"token": f"{NEW}\n{OLD}\n\n".encode()})
    assert kept.tokens == (NEW, OLD)
    assert kept.metadata == (("authorization", f"Bearer {NEW}"), ("authorization", f"Bearer {OLD}"))
    assert kept.matches([OLD]) and kept.matches(["else", NEW])
    mount(tmp_path, {"token": NEW.encode()})
    assert not kept.matches([OLD]) and kept.matches([NEW])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        b"two words of a token here",
        b"commas,of,a,token,here",
        b"x" * 4097,
        b"\n".join([b"x" * 3000] * 3),
        b"\n".join([b"y" * 20] * 5),
        b"\xff" * 20,
    ],
)
def test_what_is_no_token_is_refused_at_first_and_overlooked_later(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    mount(tmp_path / "bad", {"token": content})
    with pytest.raises(ConfigInvalid, match="openssl rand") as caught:
        Secret("token_file", path=str(tmp_path / "bad/token"))
    assert content.decode(errors="replace") not in str(caught.value) or not content
    mount(tmp_path / "good", {"token": OLD.encode()})
    kept = Secret("token_file", path=str(tmp_path / "good/token"))
    mount(tmp_path / "good", {"token": content})
    assert [kept.tokens for _ in range(3)] == [(OLD,)] * 3
    assert capsys.readouterr().out.count("token_refused") == 1


def test_tokens_of_an_identity_provider_fit_one_by_one_and_in_turn() -> None:
    """JSON web tokens of 3 kB, two while one is replaced; as long in a HELLO as in a setting."""
    for length, count in ((16, 4), (3500, 2), (limits.TOKEN_CHARS, 1)):
        text = "\n".join(["j" * length] * count)
        kept = Secret("token", text=text)
        assert len(kept.tokens) == count and all(map(well_formed, kept.tokens))
        told = Calls(token=kept).hello_token
        assert decode(encode(Hello(PROTOCOL, "job", 1, 0, "n", 0, 3, token=told))).token == text  # type: ignore[union-attr]


def test_a_file_that_is_away_for_a_while(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with pytest.raises(ConfigInvalid, match="cannot be read"):
        Secret("token_file", path=str(path))
    path.write_text(OLD)
    kept = Secret("token_file", path=str(path))
    path.unlink()
    assert kept.tokens == (OLD,)
    path.write_text(NEW)
    assert kept.tokens == (NEW,)


def test_no_message_and_no_repr_has_the_token() -> None:
    kept = Secret("fleet_token", text=OLD)
    assert OLD not in repr(kept)
    assert OLD not in repr(Hello(PROTOCOL, "job", 1, 0, "n", 0, 3, token=OLD))
    assert OLD not in repr(SecurityOptions(token=OLD))
    for given in ((), (NEW,)):
        with pytest.raises(Unauthenticated) as caught:
            kept.demand(given, "worker w0", "set fleet_token_file")
        assert "set fleet_token_file" in str(caught.value)
        assert OLD not in str(caught.value) and NEW not in str(caught.value)
    kept.demand([OLD], "worker w0", "")


def test_a_file_goes_before_a_text(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(NEW)
    found = secret("token", OLD, str(tmp_path / "token"))
    assert found is not None and found.tokens == (NEW,)
    assert secret("token", "", "") is None


def test_what_a_call_carries() -> None:
    pairs = [("authorization", f"Bearer {OLD}"), ("other", "Bearer x"), ("authorization", f"bearer  {NEW} "), ("x-bin", b"\0")]
    assert shown(pairs) == (OLD, NEW)
    assert shown([("authorization", "Basic abc"), ("authorization", "")]) == ()
    assert shown([("authorization", f"Bearer {OLD}, Bearer {NEW}")]) == (OLD, NEW)
    assert shown(None) == ()
    assert len(shown([("authorization", "Bearer x")] * 100)) == 4


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("[::1]", True), ("localhost", True), ("0.0.0.0", False),
     ("::", False), ("", False), ("10.0.0.1", False), ("example.org", False), ("localhost.example.org", False)],
)  # fmt: skip
def test_tokens_stay_on_this_machine_without_tls(host: str, local: bool) -> None:
    assert is_loopback(host) == local
    refuse_plaintext([host], True, "this")
    if local:
        refuse_plaintext([host], False, "this")
    else:
        with pytest.raises(ConfigInvalid, match="allow_plaintext_tokens"):
            refuse_plaintext(["127.0.0.1", host], False, "this")
