"""Label rules: what a sample's label is, from its parts or its path. Pure.

| rule | from | label |
|---|---|---|
| `cls` | `.cls` | a class number |
| `txt` | `.txt` | a class name, or a class number: see `number_names` |
| `json` | `.json` | passed through as text; with a class list, the name or integer in it |
| `multi` | `.json`, `.cls` or `.txt` | a list of integers (or class names), handed out as multi-hot rows |
| `folder` | the directory | a class name |

Class numbers count from 0; with a class list, up to its highest. Any other breaks the rule: -1 is the label of samples that
have none.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from headrace.core import limits
from headrace.core.errors import LabelInvalid
from headrace.datasets.manifest import LabelKind

Rule = Literal["cls", "txt", "json", "multi", "folder", "none"]
LABEL_EXTENSIONS = ("cls", "json", "txt")
MAX_LABEL_BYTES = limits.LABEL_BYTES
MAX_MULTI_CLASSES = limits.MULTI_CLASSES
_JSON_FIELDS = ("label", "cls", "class", "labels", "classes")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBERS = re.compile(r"[\s,;]+")


@dataclass(frozen=True, slots=True)
class Label:
    """A label as the index keeps it. value: integer or -1. name: a class name still to be numbered. payload: JSON or u32s."""

    value: int = -1
    name: str = ""
    payload: bytes = b""


@dataclass(frozen=True)
class LabelRule:
    """A rule with its class list; `classes` maps names to integers and may be empty. numbers: labels of `.txt` are class
    numbers, since all are integers."""

    rule: Rule
    classes: Mapping[str, int]
    numbers: bool = False

    @property
    def kind(self) -> LabelKind:
        """What kind of label a job gets."""
        if self.rule == "multi":
            return "multi"
        return "json" if self.rule == "json" and not self.classes else "int"

    @property
    def collects_names(self) -> bool:
        """Whether class names are numbered after all were seen, by sorting."""
        return self.rule in ("txt", "folder") and not self.classes and not self.numbers

    def read(self, key: str, parts: Mapping[str, bytes]) -> Label | None:
        """The label, or None where the part it should be in is missing. Raises LabelInvalid."""
        if self.rule == "none":
            return Label()
        if self.rule == "folder":
            return self._class(key.rpartition("/")[0].rpartition("/")[2])
        extension = next((ext for ext in self._extensions if ext in parts), None)
        if extension is None:
            return None
        text = _utf8(parts[extension])
        if self.rule == "cls":
            return Label(self._number(text))
        if self.rule == "txt":
            return self._class(text.strip())
        return self._multi(text, extension) if self.rule == "multi" else self._json(text)

    def number_of(self, name: str) -> int:
        """The number of a class name that was collected, under the rule of `number_names`. Raises LabelInvalid."""
        return self._class(name).value

    @property
    def _extensions(self) -> tuple[str, ...]:
        return LABEL_EXTENSIONS if self.rule == "multi" else (self.rule,)

    def _class(self, name: str) -> Label:
        if not name:
            raise LabelInvalid("empty class name")
        if name in self.classes:
            return Label(self.classes[name])
        if self.collects_names:
            return Label(name=name)
        if _INTEGER.fullmatch(name):
            return Label(self._number(name))
        raise LabelInvalid(f"class {name[:80]!r} is not in the class list")

    def _json(self, text: str) -> Label:
        value = _parse_json(text)
        if not self.classes:
            return Label(payload=text.encode())
        value = _unwrap(value)
        if isinstance(value, str):
            return self._class(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise LabelInvalid(f"{text[:80]!r} holds no class name or integer")
        return Label(self._number(str(value)))

    def _multi(self, text: str, extension: str) -> Label:
        if extension == "json" or text.lstrip().startswith("["):
            values: Any = _unwrap(_parse_json(text))
            values = values if isinstance(values, list) else [values]
        else:
            values = [item for item in _NUMBERS.split(text.strip()) if item]
        numbers = sorted({self._multi_item(item) for item in values})
        return Label(payload=np.array(numbers, "<u4").tobytes())

    def _multi_item(self, item: Any) -> int:
        if isinstance(item, str) and item in self.classes:
            return self.classes[item]
        if isinstance(item, bool) or not isinstance(item, int | str):
            raise LabelInvalid(f"{item!r} is not a class")
        number = self._number(str(item))
        if number >= MAX_MULTI_CLASSES:  # each is a column of a row
            raise LabelInvalid(f"class {number} is out of range: at most {MAX_MULTI_CLASSES} classes make a row")
        return number

    def _number(self, text: str) -> int:
        """A class number. One that no class has would end a trainer's loss function, or go into its weights unseen."""
        number = _integer(text)
        if number < 0:
            raise LabelInvalid(f"class {number} is negative: classes are numbered from 0")
        if self.classes and number > self._highest:
            raise LabelInvalid(f"class {number} is not in the class list, which ends at {self._highest}")
        return number

    @cached_property
    def _highest(self) -> int:
        return max(self.classes.values())


def choose_rule(extensions: set[str], has_folders: bool, is_folder_set: bool) -> Rule:
    """The rule that fits what is there: `.cls`, else `.json`, else `.txt`, else folder names, else none."""
    if not is_folder_set:
        for extension in LABEL_EXTENSIONS:
            if extension in extensions:
                return extension  # type: ignore[return-value]
    return "folder" if has_folders else "none"


def number_names(rule: LabelRule, names: Counter[str]) -> tuple[LabelRule, str]:
    """The rule with numbers for the names that it collected, of all samples, and a warning or nothing.

    Sorted as texts, names are 0, 1, 2, ... Where all labels in `.txt` are integers, they are the class numbers themselves: as
    names, 10 would come before 2. Folders are always names. All samples are asked, so no order of reading can change a label.
    """
    integers = {name for name in names if _INTEGER.fullmatch(name)} if rule.rule == "txt" else set()
    if integers and len(integers) == len(names):
        return LabelRule(rule.rule, {}, numbers=True), ""
    numbered = LabelRule(rule.rule, {name: i for i, name in enumerate(sorted(names))})
    if not integers:
        return numbered, ""
    other = min(name for name in names if name not in integers)
    return numbered, (
        f"{sum(names[name] for name in integers)} of {names.total()} .txt labels are integers and the others are not, as"
        f" {other[:80]!r}: so all are names of classes, numbered as sorted. If they are class numbers, correct the others, or"
        " give --classes"
    )


def parse_classes(text: str) -> dict[str, int]:
    """A class list: a JSON list of names, a JSON object name -> integer, or one name a line. Raises LabelInvalid."""
    if text.lstrip()[:1] in ("[", "{"):
        data = _parse_json(text)
    else:
        data = [line.strip() for line in text.splitlines() if line.strip()]
    numbers = _numbered(data) if isinstance(data, list) else data
    if not numbers or not all(isinstance(k, str) and type(v) is int and v >= 0 for k, v in numbers.items()):
        raise LabelInvalid("a class list is a name a line, a JSON list of names, or a JSON object of name: number")
    if max(numbers.values()) >= limits.CLASSES:
        raise LabelInvalid(f"class number {max(numbers.values())} is too high: at most {limits.CLASSES} classes are numbered")
    return dict(numbers)


def _numbered(names: list[Any]) -> dict[str, int]:
    if not all(isinstance(name, str) for name in names):
        raise LabelInvalid("a class list's names must be texts")
    if len(set(names)) != len(names):
        raise LabelInvalid("the class list names a class twice")
    return {name: i for i, name in enumerate(names)}


def _utf8(raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LabelInvalid("the label is not UTF-8 text") from error


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text.strip()):  # int() would also take 1_000 and the digits of other scripts
        raise LabelInvalid(f"{text[:80]!r} is not an integer")
    try:
        number = int(text.strip())
    except ValueError:  # thousands of digits
        raise LabelInvalid(f"{text[:80]!r} does not fit 64 bits") from None
    if not -(2**63) <= number < 2**63:
        raise LabelInvalid(f"{text[:80]!r} does not fit 64 bits")
    return number


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise LabelInvalid(f"{text[:80]!r} is not JSON") from None


def _unwrap(value: Any) -> Any:
    if isinstance(value, dict):
        for name in _JSON_FIELDS:
            if name in value:
                return value[name]
    return value
