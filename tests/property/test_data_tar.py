"""The tar parser against the standard library's, over formats, names and cuts."""

from __future__ import annotations

import io
import tarfile
import zlib

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.core.errors import HeadraceError, ShardInvalid
from headrace.datasets.tar import Interest, TarScan, group, split_name, walk
from headrace.testing.tars import tar_bytes

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
part = st.text(st.characters(codec="utf-8", exclude_characters="/\0", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=60)
name = st.lists(part, min_size=1, max_size=6).map("/".join).filter(lambda text: not text.startswith("./") and ".." not in text)
members = st.lists(st.tuples(name, st.binary(max_size=1500)), max_size=12)


def scan(data: bytes, interest: Interest = "payload") -> TarScan:
    steps = walk(len(data), lambda name, size: interest, "x.tar")
    try:
        start, length = next(steps)
        while True:
            assert 0 <= start <= start + length <= len(data), "asks for what is not there"
            start, length = steps.send(data[start : start + length])
    except StopIteration as stop:
        return stop.value


@given(members, st.sampled_from(FORMATS))
def test_finds_what_tarfile_finds(wanted: list[tuple[str, bytes]], tar_format: int) -> None:
    try:
        data = tar_bytes(wanted, tar_format)
    except ValueError:
        assume(False)  # ustar has no room for such a name
    found = scan(data)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        expected = [(info.name, info.offset_data, info.size) for info in tar.getmembers()]
    assert [(member.name, member.offset, member.size) for member in found.members] == expected
    assert [member.payload for member in found.members] == [content for _, content in wanted]
    assert not found.damage
    assert [member.crc32 for member in scan(data, "crc").members] == [zlib.crc32(content) for _, content in wanted]


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("length", [99, 100, 101])
def test_a_long_name_may_have_its_slash_where_the_header_cuts_it(tar_format: int, length: int) -> None:
    long_name = "d" * (length - 2) + "/" + "f"
    found = scan(tar_bytes([(long_name, b"content"), ("next", b"x")], tar_format))
    assert [member.name for member in found.members] == [long_name, "next"]


@given(members.filter(bool), st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]), st.data())
def test_a_cut_keeps_the_members_before_it(wanted: list[tuple[str, bytes]], tar_format: int, draw: st.DataObject) -> None:
    data = tar_bytes(wanted, tar_format)
    whole = scan(data).members
    cut = draw.draw(st.integers(512, len(data) - 1))
    found = scan(data[:cut])
    assert found.members == [member for member in whole if member.offset + member.size <= cut]
    end_of_data = max((m.offset + -(-m.size // 512) * 512 for m in whole), default=0)
    if cut < end_of_data + 512:
        assert found.damage, "a cut before the end mark must be told"


@given(st.binary(max_size=2048))
def test_other_bytes_are_refused_or_reported_never_a_crash(data: bytes) -> None:
    try:
        found = scan(data)
    except HeadraceError as error:
        assert isinstance(error, ShardInvalid) and error.ids["shard"] == "x.tar"
    else:
        assert found.members == []


@given(st.binary(min_size=512, max_size=512), st.integers(0, 8))
def test_bytes_changed_in_a_header_never_crash(noise: bytes, at: int) -> None:
    data = bytearray(tar_bytes([(f"{i}.jpg", b"x" * 600) for i in range(4)]))
    data[at * 512 : (at + 1) * 512] = noise
    try:
        scan(bytes(data))
    except ShardInvalid:
        assert at == 0


@pytest.mark.parametrize(
    ("path", "key", "extension"),
    [
        ("a.jpg", "a", "jpg"),
        ("dir.v2/a.b.JPG", "dir.v2/a", "b.jpg"),
        ("./a.cls", "a", "cls"),
        ("n01/x", "n01/x", ""),
        ("d/.hidden.jpg", "d/.hidden", "jpg"),
    ],
)
def test_key_is_the_base_name_up_to_its_first_dot(path: str, key: str, extension: str) -> None:
    assert split_name(path) == (key, extension)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["jpg", "cls", "json"])), unique=True), st.randoms())
def test_grouping_does_not_depend_on_adjacency(parts: list[tuple[int, str]], random: object) -> None:
    found = scan(tar_bytes([(f"k{key}.{extension}", b"") for key, extension in parts])).members
    groups = group(found)
    assert {(sample.key, extension) for sample in groups for extension in sample.parts} == {(f"k{k}", e) for k, e in parts}
    assert [sample.key for sample in groups] == list(dict.fromkeys(f"k{key}" for key, _ in parts))
