# Written by tools/typings.py from CV-CUDA 0.19.0, of the stubs that it ships (Apache-2.0, NVIDIA). The names that our code uses alone.
from collections.abc import Buffer, Iterator, Sequence
from typing import ClassVar, SupportsIndex, SupportsInt, overload
import numpy
from typing_extensions import CapsuleType

class Format:

    def __init__(self, value: SupportsInt | SupportsIndex) -> None:
        ...
    _2S16: ClassVar[Format]
    _2S16_BL: ClassVar[Format]
    _2F16: ClassVar[Format]
    _2F32: ClassVar[Format]
    _2C64: ClassVar[Format]
    _2C128: ClassVar[Format]
    U8: ClassVar[Format]
    U8_BL: ClassVar[Format]
    S8: ClassVar[Format]
    U16: ClassVar[Format]
    U32: ClassVar[Format]
    S32: ClassVar[Format]
    S16: ClassVar[Format]
    S16_BL: ClassVar[Format]
    F16: ClassVar[Format]
    F32: ClassVar[Format]
    F64: ClassVar[Format]
    C64: ClassVar[Format]
    C128: ClassVar[Format]
    Y8: ClassVar[Format]
    Y8_BL: ClassVar[Format]
    Y8_ER: ClassVar[Format]
    Y8_ER_BL: ClassVar[Format]
    Y16: ClassVar[Format]
    Y16_BL: ClassVar[Format]
    Y16_ER: ClassVar[Format]
    Y16_ER_BL: ClassVar[Format]
    NV12: ClassVar[Format]
    NV12_BL: ClassVar[Format]
    NV12_ER: ClassVar[Format]
    NV12_ER_BL: ClassVar[Format]
    NV21: ClassVar[Format]
    NV21_ER: ClassVar[Format]
    NV24: ClassVar[Format]
    NV24_BL: ClassVar[Format]
    NV24_ER: ClassVar[Format]
    NV24_ER_BL: ClassVar[Format]
    UYVY: ClassVar[Format]
    UYVY_BL: ClassVar[Format]
    UYVY_ER: ClassVar[Format]
    UYVY_ER_BL: ClassVar[Format]
    VYUY: ClassVar[Format]
    VYUY_BL: ClassVar[Format]
    VYUY_ER: ClassVar[Format]
    VYUY_ER_BL: ClassVar[Format]
    YUYV: ClassVar[Format]
    YUYV_BL: ClassVar[Format]
    YUYV_ER: ClassVar[Format]
    YUYV_ER_BL: ClassVar[Format]
    YUV8p: ClassVar[Format]
    YUV8p_ER: ClassVar[Format]
    RGB8: ClassVar[Format]
    BGR8: ClassVar[Format]
    RGBA8: ClassVar[Format]
    BGRA8: ClassVar[Format]
    RGB8p: ClassVar[Format]
    BGR8p: ClassVar[Format]
    RGBA8p: ClassVar[Format]
    BGRA8p: ClassVar[Format]
    RGBf16: ClassVar[Format]
    BGRf16: ClassVar[Format]
    RGBAf16: ClassVar[Format]
    BGRAf16: ClassVar[Format]
    RGBf16p: ClassVar[Format]
    BGRf16p: ClassVar[Format]
    RGBAf16p: ClassVar[Format]
    BGRAf16p: ClassVar[Format]
    RGBf32: ClassVar[Format]
    BGRf32: ClassVar[Format]
    RGBAf32: ClassVar[Format]
    BGRAf32: ClassVar[Format]
    RGBf32p: ClassVar[Format]
    BGRf32p: ClassVar[Format]
    RGBAf32p: ClassVar[Format]
    BGRAf32p: ClassVar[Format]
    HSV8: ClassVar[Format]
    LAB8: ClassVar[Format]
    LAB8p: ClassVar[Format]
    LABf16: ClassVar[Format]
    LABf16p: ClassVar[Format]
    LABf32: ClassVar[Format]
    LABf32p: ClassVar[Format]
    CMYK8: ClassVar[Format]
    YCCK8: ClassVar[Format]
    RGBA8_UNASSOCIATED_ALPHA: ClassVar[Format]
    RGB8_1U_U8: ClassVar[Format]
    RGB8_7U_U8: ClassVar[Format]
    RGBA8_3U_U16: ClassVar[Format]
    RGBA8_3POS3D_U32: ClassVar[Format]
    RGB8_3D_F32: ClassVar[Format]
    NONE: ClassVar[Format]
    __members__: dict = ...

    @property
    def name(self) -> str:
        ...

    @property
    def value(self) -> int:
        ...

    @property
    def planes(self) -> int:
        ...

    @property
    def channels(self) -> int:
        ...

    def __int__(self) -> int:
        ...

    def __index__(self) -> int:
        ...
class Type:

    @overload
    def __init__(self) -> None:
        ...

    @overload
    def __init__(self, arg: Type, /) -> None:
        ...
    _2U8: ClassVar[numpy.dtype[numpy.void]]
    _3U8: ClassVar[numpy.dtype[numpy.void]]
    _4U8: ClassVar[numpy.dtype[numpy.void]]
    _2S8: ClassVar[numpy.dtype[numpy.void]]
    _3S8: ClassVar[numpy.dtype[numpy.void]]
    _4S8: ClassVar[numpy.dtype[numpy.void]]
    _2U16: ClassVar[numpy.dtype[numpy.void]]
    _3U16: ClassVar[numpy.dtype[numpy.void]]
    _4U16: ClassVar[numpy.dtype[numpy.void]]
    _2S16: ClassVar[numpy.dtype[numpy.void]]
    _3S16: ClassVar[numpy.dtype[numpy.void]]
    _4S16: ClassVar[numpy.dtype[numpy.void]]
    _2U32: ClassVar[numpy.dtype[numpy.void]]
    _3U32: ClassVar[numpy.dtype[numpy.void]]
    _4U32: ClassVar[numpy.dtype[numpy.void]]
    _2S32: ClassVar[numpy.dtype[numpy.void]]
    _3S32: ClassVar[numpy.dtype[numpy.void]]
    _4S32: ClassVar[numpy.dtype[numpy.void]]
    _2F16: ClassVar[numpy.dtype[numpy.void]]
    _3F16: ClassVar[numpy.dtype[numpy.void]]
    _4F16: ClassVar[numpy.dtype[numpy.void]]
    _2F32: ClassVar[numpy.dtype[numpy.void]]
    _3F32: ClassVar[numpy.dtype[numpy.void]]
    _4F32: ClassVar[numpy.dtype[numpy.void]]
    _2U64: ClassVar[numpy.dtype[numpy.void]]
    _3U64: ClassVar[numpy.dtype[numpy.void]]
    _4U64: ClassVar[numpy.dtype[numpy.void]]
    _2S64: ClassVar[numpy.dtype[numpy.void]]
    _3S64: ClassVar[numpy.dtype[numpy.void]]
    _4S64: ClassVar[numpy.dtype[numpy.void]]
    _2F64: ClassVar[numpy.dtype[numpy.void]]
    _3F64: ClassVar[numpy.dtype[numpy.void]]
    _4F64: ClassVar[numpy.dtype[numpy.void]]
    _2C64: ClassVar[numpy.dtype[numpy.void]]
    _3C64: ClassVar[numpy.dtype[numpy.void]]
    _4C64: ClassVar[numpy.dtype[numpy.void]]
    _2C128: ClassVar[numpy.dtype[numpy.void]]
    U8: ClassVar[numpy.dtype[numpy.uint8]]
    S8: ClassVar[numpy.dtype[numpy.int8]]
    U16: ClassVar[numpy.dtype[numpy.uint16]]
    S16: ClassVar[numpy.dtype[numpy.int16]]
    U32: ClassVar[numpy.dtype[numpy.uint32]]
    S32: ClassVar[numpy.dtype[numpy.int32]]
    F16: ClassVar[numpy.dtype[numpy.float16]]
    F32: ClassVar[numpy.dtype[numpy.float32]]
    U64: ClassVar[numpy.dtype[numpy.uint64]]
    S64: ClassVar[numpy.dtype[numpy.int64]]
    F64: ClassVar[numpy.dtype[numpy.float64]]
    C64: ClassVar[numpy.dtype[numpy.complex64]]
    C128: ClassVar[numpy.dtype[numpy.complex128]]

    @property
    def components(self) -> int:
        ...

    def __lt__(self, arg: Type, /) -> bool:
        ...
class ThreadScope:
    __members__: ClassVar[dict[str, ThreadScope]]

    def __init__(self, value: SupportsInt | SupportsIndex) -> None:
        ...

    def __index__(self) -> int:
        ...

    def __int__(self) -> int:
        ...

    @property
    def name(self) -> str:
        ...

    @property
    def value(self) -> int:
        ...
    GLOBAL: ClassVar[ThreadScope]
    LOCAL: ClassVar[ThreadScope]
class TensorLayout:

    def __init__(self, arg: str, /) -> None:
        ...
    NONE: ClassVar[TensorLayout]
    N: ClassVar[TensorLayout]
    C: ClassVar[TensorLayout]
    F: ClassVar[TensorLayout]
    D: ClassVar[TensorLayout]
    H: ClassVar[TensorLayout]
    W: ClassVar[TensorLayout]
    WC: ClassVar[TensorLayout]
    CW: ClassVar[TensorLayout]
    NW: ClassVar[TensorLayout]
    NWC: ClassVar[TensorLayout]
    NCW: ClassVar[TensorLayout]
    HW: ClassVar[TensorLayout]
    NHW: ClassVar[TensorLayout]
    FHW: ClassVar[TensorLayout]
    NFHW: ClassVar[TensorLayout]
    CHW: ClassVar[TensorLayout]
    NCHW: ClassVar[TensorLayout]
    HWC: ClassVar[TensorLayout]
    NHWC: ClassVar[TensorLayout]
    CFHW: ClassVar[TensorLayout]
    FCHW: ClassVar[TensorLayout]
    FHWC: ClassVar[TensorLayout]
    NCFHW: ClassVar[TensorLayout]
    NFCHW: ClassVar[TensorLayout]
    NFHWC: ClassVar[TensorLayout]
    DHW: ClassVar[TensorLayout]
    NDHW: ClassVar[TensorLayout]
    CDHW: ClassVar[TensorLayout]
    DHWC: ClassVar[TensorLayout]
    NCDHW: ClassVar[TensorLayout]
    NDHWC: ClassVar[TensorLayout]
    FDHW: ClassVar[TensorLayout]
    NFDHW: ClassVar[TensorLayout]
    CFDHW: ClassVar[TensorLayout]
    FCDHW: ClassVar[TensorLayout]
    FDHWC: ClassVar[TensorLayout]
    NCFDHW: ClassVar[TensorLayout]
    NFCDHW: ClassVar[TensorLayout]
    NFDHWC: ClassVar[TensorLayout]
def clear_cache(scope: ThreadScope=...) -> None:
    ...
def set_cache_limit_inbytes(arg: SupportsInt | SupportsIndex, /) -> None:
    ...
class Stream:

    def __init__(self) -> None:
        ...

    def __enter__(self) -> None:
        ...

    def __exit__(self, arg0: object | None, arg1: object | None, arg2: object | None, /) -> None:
        ...

    def sync(self) -> None:
        ...

    def wait_stream(self, other: Stream) -> None:
        ...

    def __int__(self) -> int:
        ...

    @property
    def handle(self) -> int:
        ...

    @property
    def id(self) -> int:
        ...
class Resource:

    @property
    def id(self) -> int:
        ...

    def submitStreamSync(self, stream: Stream) -> None:
        ...
class Container(Resource):
    pass
class ExternalBuffer:

    @property
    def shape(self) -> tuple:
        ...

    @property
    def strides(self) -> tuple:
        ...

    @property
    def dtype(self) -> object:
        ...

    def __dlpack__(self, stream: object=1, max_version: object | None=None) -> CapsuleType:
        ...

    def __dlpack_device__(self) -> tuple:
        ...
class Image(Container):

    @overload
    def __init__(self, size: tuple[int, int], format: Format, rowalign: SupportsInt | SupportsIndex=0) -> None:
        ...

    @overload
    def __init__(self, buffer: Buffer, format: Format=..., rowalign: SupportsInt | SupportsIndex=0) -> None:
        ...

    @overload
    def __init__(self, buffer: Sequence[Buffer], format: Format=..., rowalign: SupportsInt | SupportsIndex=0) -> None:
        ...

    @staticmethod
    def zeros(size: tuple[int, int], format: Format, rowalign: SupportsInt | SupportsIndex=0) -> Image:
        ...

    def cuda(self, layout: TensorLayout | None=None) -> object:
        ...

    def cpu(self, layout: TensorLayout | None=None) -> object:
        ...

    @property
    def size(self) -> tuple[int, int]:
        ...

    @property
    def width(self) -> int:
        ...

    @property
    def height(self) -> int:
        ...

    @property
    def format(self) -> Format:
        ...
class Tensor(Container):

    @overload
    def __init__(self, nimages: SupportsInt | SupportsIndex, imgsize: tuple[int, int], format: Format, rowalign: SupportsInt | SupportsIndex=0) -> None:
        ...

    @overload
    def __init__(self, shape: tuple, dtype: Type, layout: TensorLayout | str | None=None, rowalign: SupportsInt | SupportsIndex=0) -> None:
        ...

    @property
    def layout(self) -> object:
        ...

    @property
    def shape(self) -> tuple:
        ...

    @property
    def dtype(self) -> Type:
        ...

    @property
    def ndim(self) -> int:
        ...

    def cuda(self) -> object:
        ...

    def reshape(self, shape: tuple, layout: TensorLayout | str | None=None) -> Tensor:
        ...
@overload
def as_tensor(buffer: ExternalBuffer, layout: TensorLayout | str | None=None) -> Tensor:
    ...
@overload
def as_tensor(image: Image) -> Tensor:
    ...
class ImageBatchVarShape(Container):

    def __init__(self, capacity: SupportsInt | SupportsIndex) -> None:
        ...

    @property
    def uniqueformat(self) -> object:
        ...

    @property
    def maxsize(self) -> tuple[int, int]:
        ...

    @property
    def capacity(self) -> int:
        ...

    def __len__(self) -> int:
        ...

    def __iter__(self) -> Iterator[Image]:
        ...

    @overload
    def pushback(self, arg: Image, /) -> None:
        ...

    @overload
    def pushback(self, arg: Sequence[Image], /) -> None:
        ...

    def popback(self, count: SupportsInt | SupportsIndex=1) -> None:
        ...

    def clear(self) -> None:
        ...
def as_images(buffers: Sequence[object]=[], format: Format=...) -> ImageBatchVarShape:
    ...
class Border:
    __members__: ClassVar[dict[str, Border]]

    def __init__(self, value: SupportsInt | SupportsIndex) -> None:
        ...

    def __index__(self) -> int:
        ...

    def __int__(self) -> int:
        ...

    @property
    def name(self) -> str:
        ...

    @property
    def value(self) -> int:
        ...
    CONSTANT: ClassVar[Border]
    REPLICATE: ClassVar[Border]
    REFLECT: ClassVar[Border]
    WRAP: ClassVar[Border]
    REFLECT101: ClassVar[Border]
    CONSTANT_COVERAGE: ClassVar[Border]
class Interp:
    __members__: ClassVar[dict[str, Interp]]

    def __init__(self, value: SupportsInt | SupportsIndex) -> None:
        ...

    def __index__(self) -> int:
        ...

    def __int__(self) -> int:
        ...

    @property
    def name(self) -> str:
        ...

    @property
    def value(self) -> int:
        ...
    NEAREST: ClassVar[Interp]
    NEAREST_FLOOR: ClassVar[Interp]
    LINEAR: ClassVar[Interp]
    CUBIC: ClassVar[Interp]
    AREA: ClassVar[Interp]
    LANCZOS: ClassVar[Interp]
    WARP_INVERSE_MAP: ClassVar[Interp]
    GAUSSIAN: ClassVar[Interp]
    HAMMING: ClassVar[Interp]
    BOX: ClassVar[Interp]

    def __or__(self, arg: Interp, /) -> int:
        ...
def crop_flip_normalize_reformat_into(dst: Tensor, src: ImageBatchVarShape, rect: Tensor, flip_code: Tensor, base: Tensor, scale: Tensor, globalscale: float=1.0, globalshift: float=0.0, epsilon: float=0.0, flags: SupportsInt | SupportsIndex | None=None, border: Border=..., bvalue: float=0, *, stream: Stream | None=None) -> Tensor:
    ...
@overload
def pillowresize_into(dst: Tensor, src: Tensor, format: Format, interp: Interp=..., *, stream: Stream | None=None) -> Tensor:
    ...
@overload
def pillowresize_into(dst: ImageBatchVarShape, src: ImageBatchVarShape, interp: Interp=..., *, stream: Stream | None=None) -> ImageBatchVarShape:
    ...
