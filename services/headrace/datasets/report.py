"""What indexing found: tallies per shard, and the report for people. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from headrace.core.errors import ShardInvalid
from headrace.datasets.exclude import Excluded
from headrace.datasets.labels import LabelRule
from headrace.datasets.manifest import Kind, Manifest, Shard
from headrace.datasets.scan import Found

MAX_DETAILS = 1000
MAX_WARNINGS = 200
MANY = 100  # samples; fewer are a first try, in which a class may well come once
_WHAT_TO_DO = {
    "missing_part": "each sample needs an image and the part that --labels names",
    "bad_label": "correct the labels, or --labels and --classes",
}
_COPY_AGAIN = "copy the data again"


@dataclass(slots=True)
class Tally:
    """Counts over samples. same_label, pairs: neighbours in one shard with equal labels, and in all. width: highest set label
    of multi-label rows + 1. matched: entries of --exclude that fitted a sample. notes: what is to be known and no fault."""

    samples: int = 0
    bad_kept: int = 0
    excluded: int = 0
    matched: set[Excluded] = field(default_factory=set)
    pairs: int = 0
    same_label: int = 0
    width: int = 1
    max_key_bytes: int = 0
    max_payload_bytes: int = 0
    labels: Counter[int] = field(default_factory=Counter)
    bad: Counter[str] = field(default_factory=Counter)
    details: list[tuple[str, str, str, str]] = field(default_factory=list)  # shard, key, reason, what was wrong
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, shard: str, found: Found, rule: LabelRule) -> None:
        """Count the samples of one shard; their labels are numbered by now."""
        entries = found.entries
        self.samples += len(entries)
        self.bad_kept += sum(entry.reason != "none" for entry in entries)
        self.excluded += found.excluded
        self.matched |= found.matched
        self.max_key_bytes = max([self.max_key_bytes, *(len(entry.key.encode()) for entry in entries)])
        self.max_payload_bytes = max([self.max_payload_bytes, *(len(entry.payload) for entry in entries)])
        self.bad.update(reason for _, reason, _ in found.details)
        self.details += [(shard, *detail) for detail in found.details[: MAX_DETAILS - len(self.details)]]
        self.warnings += found.warnings[: MAX_WARNINGS - len(self.warnings)]
        if rule.kind == "int":
            self.labels.update(entry.label for entry in entries)
            self.pairs += max(0, len(entries) - 1)
            self.same_label += sum(a.label == b.label for a, b in pairwise(entries))
        elif rule.kind == "multi":
            for entry in entries:
                if entry.payload:
                    self.width = max(self.width, int(np.frombuffer(entry.payload, "<u4")[-1]) + 1)


def check_usable(tally: Tally, address: str) -> None:
    """Warn where most samples are bad. Raises ShardInvalid where all are: no job could train on that, and the manifest
    before may be a good one."""
    bad = tally.bad.total()
    good = tally.samples - tally.bad_kept
    if not bad and not good:
        more = f"; and {len(tally.warnings) - 1} more" if len(tally.warnings) > 1 else ""
        why = f"{tally.warnings[0]}{more}" if tally.warnings else "check the address and --exclude"
        raise ShardInvalid(f"no samples in {address}: {why}")
    if bad <= good:
        return
    counts = ", ".join(f"{count} {reason}" for reason, count in tally.bad.most_common())
    main = tally.bad.most_common(1)[0][0]
    to_do = _WHAT_TO_DO.get(main, _COPY_AGAIN)
    if good:
        tally.warnings.insert(0, f"most samples are bad, {bad} of {good + bad} ({counts}): {to_do}")
        return
    shard, key, _, detail = min((one for one in tally.details if one[2] == main), default=tally.details[0])
    raise ShardInvalid(
        f"none of {bad} samples in {address} can be used ({counts}), as {key!r} in {shard}: {detail}; {to_do}. No manifest was"
        " written or replaced",
        shard=shard,
        key=key,
    )


def tell_labels(tally: Tally, rule: LabelRule) -> None:
    """Say so where no sample has a label, or folders or texts make no classes: nothing else would before a look at the loss."""
    if rule.rule == "none":
        tally.notes.append(
            "there are no labels: each sample's is -1. Labels come from a .cls, .json or .txt beside each image in a tar, or"
            " from a folder for each class"
        )
    if rule.rule == "folder" and len(numbers := [label for label in tally.labels if label >= 0]) == 1:
        name = next((name for name, number in rule.classes.items() if number == numbers[0]), f"{numbers[0]}")
        tally.warnings.append(
            f"all samples are of one class, {name!r}: the class is the folder that a file itself lies in. For classes, move the"
            " files up into a folder for each; for no labels say --labels none"
        )
    classes, good = len([label for label in tally.labels if label >= 0]), tally.samples - tally.bad_kept
    if rule.rule == "txt" and not rule.numbers and good >= MANY and 2 * classes > good:
        tally.warnings.append(
            f"the .txt of {good} samples make {classes} classes, so hardly two samples share one: if they are captions say"
            " --labels none and find each by its batch.keys, or put them into .json, which comes as it is"
        )


@dataclass(slots=True)
class IndexReport:
    """What indexing found. address: where the manifest was written."""

    manifest: Manifest
    address: str
    tally: Tally

    @property
    def class_sorted(self) -> bool:
        """True where neighbours share their label far more often than by chance."""
        tally = self.tally
        chance = sum((count / tally.samples) ** 2 for count in tally.labels.values())
        return len(tally.labels) > 1 and tally.same_label > tally.pairs * (chance + 0.5 * (1 - chance))


def make_manifest(
    kind: Kind, *, rule: LabelRule, tally: Tally, shards: list[Shard], classes: tuple[str, ...], root: str, checksums: bool
) -> Manifest:
    """The manifest of what was counted."""
    width = (len(classes) or tally.width) if rule.kind == "multi" else 1
    distinct = len([label for label in tally.labels if label >= 0])
    return Manifest(
        kind=kind,
        label_kind=rule.kind,
        label_width=width,
        num_classes=len(classes) or (width if rule.kind == "multi" else distinct),
        samples=tally.samples,
        bad=tally.bad_kept,
        max_key_bytes=tally.max_key_bytes,
        max_label_bytes=tally.max_payload_bytes if rule.kind == "json" else 8,
        classes=classes,
        shards=tuple(shards),
        root=root,
        checksums=checksums,
    )
