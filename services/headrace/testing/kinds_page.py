"""The tables of docs/decode_contract.md that list what is tried: `python -m headrace.testing.kinds_page` writes them anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from headrace.core.image_header import sniff
from headrace.testing import container_kinds, image_variants

PAGE = Path("docs/decode_contract.md")
_BEGIN, _END = "<!-- {} begin: python -m headrace.testing.kinds_page -->", "<!-- {} end -->"


def images() -> Iterator[str]:
    """Lines of the table of images."""
    yield "| kind | right answer | variants tried |"
    yield "|---|---|---|"
    for row, answer in image_variants.ROWS.items():
        kinds = [kind for kind in image_variants.image_variants() if kind.row == row]
        formats = Counter(sniff(kind.data) or "none" for kind in kinds)
        named = ", ".join(f"{count} {name}" for name, count in formats.most_common())
        yield f"| {row} | {answer} | {len(kinds)}: {named} |"


def containers() -> Iterator[str]:
    """Lines of the table of containers."""
    yield "| kind | right answer | variants tried |"
    yield "|---|---|---|"
    for row, answer in container_kinds.ROWS.items():
        names = [kind.name.replace("_", " ") for kind in container_kinds.container_kinds() if kind.row == row]
        yield f"| {row} | {answer} | {len(names)}: {', '.join(names)} |"


def with_tables(page: str) -> str:
    """The page with both tables as they are now."""
    return _replaced(_replaced(page, "images", images()), "containers", containers())


def _replaced(page: str, name: str, lines: Iterable[str]) -> str:
    begin, end = _BEGIN.format(name), _END.format(name)
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return "\n".join([before + begin, *lines, end]) + after


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
