"""The pipeline spec: decode, augmentation and output format, as data.

Pure. A spec is what a job is opened with; its canonical JSON is hashed into the plan hash and stamped on each batch.
Sizes are (height, width) in pixels. Operations apply in the order given; coordinates are those of the image after its
EXIF orientation was applied.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias, get_args

from headrace.core import limits
from headrace.core.errors import SpecInvalid
from headrace.core.spec_numbers import settle

DType = Literal["uint8", "float16", "bfloat16", "float32"]
Layout = Literal["NHWC", "NCHW"]
BadSamplePolicy = Literal["substitute", "fail"]

# Itemsize in bytes of an output element.
ITEM_BYTES: dict[str, int] = {"uint8": 1, "float16": 2, "bfloat16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class Resize:
    """Resize with antialiased bilinear so that the shorter side is `size`, or to exactly `size` if it is a pair."""

    size: int | tuple[int, int]


@dataclass(frozen=True, slots=True)
class CenterCrop:
    """Cut (height, width) from the middle; where the image is smaller it is padded with `Decode.background`."""

    size: tuple[int, int]


@dataclass(frozen=True, slots=True)
class RandomCrop:
    """Cut (height, width) at a random place; where the image is smaller it is padded with `Decode.background`."""

    size: tuple[int, int]


@dataclass(frozen=True, slots=True)
class RandomResizedCrop:
    """Cut a random box (area `scale`, aspect `ratio` = width/height, as torchvision draws it), resize it to `size`."""

    size: tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)


@dataclass(frozen=True, slots=True)
class HorizontalFlip:
    """Mirror left and right with probability `p`."""

    p: float = 0.5


@dataclass(frozen=True, slots=True)
class VerticalFlip:
    """Mirror top and bottom with probability `p`."""

    p: float = 0.5


@dataclass(frozen=True, slots=True)
class ColorJitter:
    """Brightness, contrast, saturation (factor from [max(0, 1-x), 1+x]) and hue (shift from [-x, x] turns), in random order."""

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0


@dataclass(frozen=True, slots=True)
class Grayscale:
    """Three equal channels of luma (ITU-R 601-2) with probability `p`."""

    p: float = 0.1


@dataclass(frozen=True, slots=True)
class GaussianBlur:
    """Blur with odd kernel size in pixels and sigma from `sigma` with probability `p`."""

    kernel: int = 9
    sigma: tuple[float, float] = (0.1, 2.0)
    p: float = 1.0


@dataclass(frozen=True, slots=True)
class RandomErasing:
    """Fill a random box (area `scale`, aspect `ratio`) with `value` (0-255 per channel) with probability `p`."""

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: tuple[int, int, int] = (0, 0, 0)


Op: TypeAlias = (
    Resize
    | CenterCrop
    | RandomCrop
    | RandomResizedCrop
    | HorizontalFlip
    | VerticalFlip
    | ColorJitter
    | Grayscale
    | GaussianBlur
    | RandomErasing
)

OP_NAMES: dict[type, str] = {
    Resize: "resize",
    CenterCrop: "center_crop",
    RandomCrop: "random_crop",
    RandomResizedCrop: "random_resized_crop",
    HorizontalFlip: "horizontal_flip",
    VerticalFlip: "vertical_flip",
    ColorJitter: "color_jitter",
    Grayscale: "grayscale",
    GaussianBlur: "gaussian_blur",
    RandomErasing: "random_erasing",
}
OPS_BY_NAME: dict[str, type] = {name: cls for cls, name in OP_NAMES.items()}
GEOMETRIC = (Resize, CenterCrop, RandomCrop, RandomResizedCrop)


@dataclass(frozen=True, slots=True)
class Decode:
    """Rules of decoding.

    max_pixels: larger images (by header) are bad samples; 100 Mpx takes 300 MB. background: what alpha is composited on.
    It holds for what a resize by the shorter side makes on the way, too (a strip of 1 by 16384 pixels would become 1 Gpx).
    tolerate_truncated: True accepts images whose data end early, with the missing rows as the decoder leaves them.
    """

    max_pixels: int = 100_000_000
    background: tuple[int, int, int] = (255, 255, 255)
    tolerate_truncated: bool = False


@dataclass(frozen=True, slots=True)
class Normalize:
    """(x / 255 - mean) / std per channel; only for float outputs."""

    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True)
class Output:
    """Format of a batch's pixels. Float outputs without `normalize` are x / 255."""

    dtype: DType = "uint8"
    layout: Layout = "NHWC"
    normalize: Normalize | None = None


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """What is done to each image. At least one operation must fix the size; the last that does gives the output size."""

    ops: tuple[Op, ...] = (RandomResizedCrop((224, 224)), HorizontalFlip())
    output: Output = field(default_factory=Output)
    decode: Decode = field(default_factory=Decode)
    on_bad_sample: BadSamplePolicy = "substitute"

    def __post_init__(self) -> None:
        object.__setattr__(self, "ops", tuple(self.ops) if isinstance(self.ops, list) else self.ops)
        _validate(self)
        # Equal specs must have equal hashes.
        output = settle(self.output, "output")
        if output.normalize is not None:
            output = replace(output, normalize=settle(output.normalize, "output.normalize"))
        object.__setattr__(self, "ops", tuple(settle(op, f"ops[{i}]") for i, op in enumerate(self.ops)))
        object.__setattr__(self, "output", output)
        object.__setattr__(self, "decode", settle(self.decode, "decode"))

    @property
    def out_size(self) -> tuple[int, int]:
        """(height, width) of every output image."""
        for op in reversed(self.ops):
            if isinstance(op, CenterCrop | RandomCrop | RandomResizedCrop):
                return op.size
            if isinstance(op, Resize) and not isinstance(op.size, int):
                return op.size
        raise SpecInvalid("no operation fixes the output size: add random_resized_crop, center_crop or resize to a pair")

    def shape(self, batch_size: int) -> tuple[int, int, int, int]:
        """Shape of a batch's pixels in the output layout."""
        height, width = self.out_size
        if self.output.layout == "NHWC":
            return (batch_size, height, width, 3)
        return (batch_size, 3, height, width)

    def pixel_bytes(self, batch_size: int) -> int:
        """Bytes of a batch's pixels."""
        return math.prod(self.shape(batch_size)) * ITEM_BYTES[self.output.dtype]

    @property
    def op_names(self) -> tuple[str, ...]:
        """Names of the operations used, in order; an engine must have each."""
        return tuple(OP_NAMES[type(op)] for op in self.ops)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `from_dict` reads it back equal."""
        ops = [{"op": OP_NAMES[type(op)], **asdict(op)} for op in self.ops]
        return {"ops": ops, "output": asdict(self.output), "decode": asdict(self.decode), "on_bad_sample": self.on_bad_sample}

    def canonical_json(self) -> str:
        """The text that is hashed: sorted keys, no spaces."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))

    @property
    def hash(self) -> str:
        """Hex BLAKE2b-128 of the canonical JSON."""
        return hashlib.blake2b(self.canonical_json().encode(), digest_size=16).hexdigest()

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> PipelineSpec:
        """Build from plain data. Raises SpecInvalid with `field` naming an unknown, missing or malformed one."""
        known = {"ops", "output", "decode", "on_bad_sample"}
        _refuse_unknown(data, known, "pipeline")
        kwargs: dict[str, Any] = {}
        if "ops" in data:
            if not isinstance(data["ops"], list | tuple):
                raise SpecInvalid("pipeline.ops must be a list of operations", field="ops")
            kwargs["ops"] = tuple(_op_from_dict(op, f"ops[{i}]") for i, op in enumerate(data["ops"]))
        if "output" in data:
            output = dict(_mapping(data["output"], "output"))
            if output.get("normalize") is not None:
                output["normalize"] = _build(Normalize, output["normalize"], "output.normalize")
            kwargs["output"] = _build(Output, output, "output")
        if "decode" in data:
            kwargs["decode"] = _build(Decode, data["decode"], "decode")
        if "on_bad_sample" in data:
            kwargs["on_bad_sample"] = data["on_bad_sample"]
        return PipelineSpec(**kwargs)


def shown(value: Any) -> str:
    """A value for a message: cut short, since it may be a megabyte of anything."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SpecInvalid(f"{where} must be an object with named fields, not {type(value).__name__}", field=where)
    return value


def _refuse_unknown(data: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(str(name) for name in data if name not in known)
    if unknown:
        raise SpecInvalid(
            f"unknown field {shown(unknown[0])} in {where}; known: {', '.join(sorted(known))}", field=unknown[0][:100]
        )


def _op_from_dict(data: Any, where: str) -> Op:
    named = dict(_mapping(data, where))
    name = named.pop("op", None)
    if not isinstance(name, str) or name not in OPS_BY_NAME:
        raise SpecInvalid(f"unknown operation {shown(name)} in {where}; known: {', '.join(sorted(OPS_BY_NAME))}", field=where)
    op: Op = _build(OPS_BY_NAME[name], named, where)
    return op


def _build(cls: type, data: Any, where: str) -> Any:
    data = _mapping(data, where)
    _refuse_unknown(data, {f.name for f in fields(cls)}, where)
    missing = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING and f.name not in data]
    if missing:
        raise SpecInvalid(f"{where} lacks {missing[0]!r}", field=f"{where}.{missing[0]}")
    return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in data.items()})


def _number(value: Any, low: float, high: float, where: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise SpecInvalid(f"{where} must be a number from {low:g} to {high:g}, not {shown(value)}", field=where)


def _numbers(value: Any, count: int, low: float, high: float, where: str) -> None:
    if not isinstance(value, tuple) or len(value) != count:
        raise SpecInvalid(f"{where} must be {count} numbers, not {shown(value)}", field=where)
    for item in value:
        _number(item, low, high, where)


def _size(value: Any, where: str) -> None:
    _numbers(value, 2, 1, 16384, where)
    if not all(isinstance(item, int) for item in value):
        raise SpecInvalid(f"{where} must be whole pixels, not {shown(value)}", field=where)


def _interval(value: Any, low: float, high: float, where: str) -> None:
    _numbers(value, 2, low, high, where)
    if value[0] > value[1]:
        raise SpecInvalid(f"{where} must be (low, high), not {shown(value)}", field=where)


def _choice(value: Any, choices: tuple[str, ...], where: str) -> None:
    if value not in choices:
        raise SpecInvalid(f"{where} must be one of {', '.join(choices)}, not {shown(value)}", field=where)


def _validate_op(op: Op, where: str) -> None:
    match op:
        case Resize():
            if isinstance(op.size, int):
                _number(op.size, 1, 16384, f"{where}.size")
            else:
                _size(op.size, f"{where}.size")
        case CenterCrop() | RandomCrop():
            _size(op.size, f"{where}.size")
        case RandomResizedCrop():
            _size(op.size, f"{where}.size")
            _interval(op.scale, 1e-4, 1.0, f"{where}.scale")
            _interval(op.ratio, 1e-2, 1e2, f"{where}.ratio")
        case HorizontalFlip() | VerticalFlip() | Grayscale():
            _number(op.p, 0, 1, f"{where}.p")
        case ColorJitter():
            _number(op.brightness, 0, 10, f"{where}.brightness")
            _number(op.contrast, 0, 10, f"{where}.contrast")
            _number(op.saturation, 0, 10, f"{where}.saturation")
            _number(op.hue, 0, 0.5, f"{where}.hue")
        case GaussianBlur():
            _number(op.kernel, 1, 127, f"{where}.kernel")
            if op.kernel % 2 == 0:
                raise SpecInvalid(f"{where}.kernel must be odd, not {op.kernel}", field=f"{where}.kernel")
            _interval(op.sigma, 1e-3, 100, f"{where}.sigma")
            _number(op.p, 0, 1, f"{where}.p")
        case RandomErasing():
            _number(op.p, 0, 1, f"{where}.p")
            _interval(op.scale, 1e-4, 1.0, f"{where}.scale")
            _interval(op.ratio, 1e-2, 1e2, f"{where}.ratio")
            _numbers(op.value, 3, 0, 255, f"{where}.value")


def _validate(spec: PipelineSpec) -> None:
    for name, kind in (("ops", tuple), ("output", Output), ("decode", Decode)):
        if not isinstance(getattr(spec, name), kind):
            raise SpecInvalid(f"pipeline.{name} must be a {kind.__name__}, not {shown(getattr(spec, name))}", field=name)
    limits.at_most(len(spec.ops), limits.OPS, "operations of a pipeline", SpecInvalid, field="ops")
    for i, op in enumerate(spec.ops):
        if type(op) not in OP_NAMES:
            raise SpecInvalid(f"ops[{i}] is not an operation: {shown(op)}", field=f"ops[{i}]")
        _validate_op(op, f"ops[{i}]({OP_NAMES[type(op)]})")
    _ = spec.out_size
    last = next(op for op in reversed(spec.ops) if isinstance(op, GEOMETRIC))
    if isinstance(last, Resize) and isinstance(last.size, int):
        raise SpecInvalid(
            "the last geometric operation must fix both sides: end with a crop or a resize to a pair", field="ops"
        )
    _choice(spec.output.dtype, get_args(DType), "output.dtype")
    _choice(spec.output.layout, get_args(Layout), "output.layout")
    _choice(spec.on_bad_sample, get_args(BadSamplePolicy), "on_bad_sample")
    if spec.output.normalize is not None:
        if not isinstance(spec.output.normalize, Normalize):
            raise SpecInvalid(f"output.normalize must be a Normalize, not {shown(spec.output.normalize)}", field="normalize")
        if spec.output.dtype == "uint8":
            raise SpecInvalid(
                "uint8 output can't be normalised: choose a float dtype, or normalise on the device", field="normalize"
            )
        _numbers(spec.output.normalize.mean, 3, -10, 10, "output.normalize.mean")
        _numbers(spec.output.normalize.std, 3, 1e-6, 10, "output.normalize.std")
    _number(spec.decode.max_pixels, 1, 2**31, "decode.max_pixels")
    _numbers(spec.decode.background, 3, 0, 255, "decode.background")
    if not isinstance(spec.decode.tolerate_truncated, bool):
        raise SpecInvalid(
            f"decode.tolerate_truncated must be true or false, not {shown(spec.decode.tolerate_truncated)}",
            field="decode.tolerate_truncated",
        )
