"""No password, key or signature of an address is ever shown: rules by example, and by properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import HeadraceError, JobMismatch
from headrace.core.masking import mask_address

SECRET = "c4n4ry"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("redis://user:c4n4ry@host:6379/0", "redis://***@host:6379/0"),
        ("redis://:c4n4ry/with#odd?chars@x@host/0", "redis://***@host/0"),
        ("rediss://host/0?password=c4n4ry", "rediss://host/0?***"),
        ("sentinel://:c4n4ry@a:1,b:2/name", "sentinel://***@a:1,b:2/name"),
        ("https://c4n4ry@host/a@b.tar", "https://***@host/a@b.tar"),
        ("https://user:c4n4ry/x@host/a", "https://***@host/a"),
        ("s3://bucket/a/b?X-Amz-Signature=c4n4ry&X-Amz-Credential=c4n4ry", "s3://bucket/a/b?***"),
        ("az://account/c?sv=1&sig=c4n4ry#c4n4ry", "az://account/c?***"),
        ("read https://h/x?sig=c4n4ry: refused", "read https://h/x?*** refused"),
        ("'s3://k:c4n4ry@b/x', \"http://h/?t=c4n4ry\"", "'s3://***@b/x', \"http://h/?***\""),
        ("redis://:c4n4ry@a,redis://:c4n4ry@b", "redis://***@a,redis://***@b"),
        ("HTTPS://u:c4n4ry@h", "HTTPS://***@h"),
    ],
)
def test_what_is_masked(address: str, shown: str) -> None:
    assert mask_address(address) == shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/local/a@b?c",
        "s3://bucket/key with.tar",
        "http://[::1]:8080/x",
        "host:7300",
        "a@b.c",
        "unix:///run/x.sock",
        "https://h:1/a@1",
    ],
)
def test_what_stays_as_it_is(text: str) -> None:
    assert mask_address(text) == text


part = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8)
schemes = st.sampled_from(["redis", "rediss", "s3", "gs", "az", "http", "https", "sentinel"])


@given(schemes, part, part, st.lists(part, max_size=3), st.booleans())
def test_no_user_password_or_query_value_is_left(scheme: str, user: str, host: str, path: list[str], query: bool) -> None:
    address = f"{scheme}://{user}:{SECRET}@{host}/{'/'.join(path)}" + (f"?key={SECRET}&x={SECRET}" if query else "")
    for text in (address, f"cannot reach {address}: timed out", f"<{address}>", repr([address, address])):
        assert SECRET not in mask_address(text)
        assert mask_address(mask_address(text)) == mask_address(text)
        assert SECRET not in str(HeadraceError(text, address=address, other=address))


def test_a_mismatch_of_data_sets_shows_neither_address_in_full() -> None:
    error = JobMismatch(f"open with s3://b/x?sig={SECRET}", recorded=f"s3://b/x?sig={SECRET}", given="s3://b/x")
    assert SECRET not in repr(error) + str(error) + str(error.ids)
