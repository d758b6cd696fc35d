# Written by tools/typings.py from nvImageCodec 0.9.0.20, by pybind11-stubgen. The names that our code uses alone.
import collections.abc
import numpy
import numpy.typing
import os
import typing
import typing_extensions

class BackendKind:
    CPU_ONLY: typing.ClassVar[BackendKind]
    GPU_ONLY: typing.ClassVar[BackendKind]
    HW_GPU_ONLY: typing.ClassVar[BackendKind]
    HYBRID_CPU_GPU: typing.ClassVar[BackendKind]
    __members__: typing.ClassVar[dict[str, BackendKind]]

    def __index__(self) -> int:
        ...

    def __init__(self, value: typing.SupportsInt) -> None:
        ...

    def __int__(self) -> int:
        ...

    @property
    def name(self) -> str:
        ...

    @property
    def value(self) -> int:
        ...
class LoadHintPolicy:
    ADAPTIVE_MINIMIZE_IDLE_TIME: typing.ClassVar[LoadHintPolicy]
    FIXED: typing.ClassVar[LoadHintPolicy]
    IGNORE: typing.ClassVar[LoadHintPolicy]
    __members__: typing.ClassVar[dict[str, LoadHintPolicy]]

    def __index__(self) -> int:
        ...

    def __init__(self, value: typing.SupportsInt) -> None:
        ...

    def __int__(self) -> int:
        ...

    @property
    def name(self) -> str:
        ...

    @property
    def value(self) -> int:
        ...
class Backend:

    @typing.overload
    def __init__(self) -> None:
        ...

    @typing.overload
    def __init__(self, backend_kind: BackendKind, load_hint: typing.SupportsFloat=1.0, load_hint_policy: LoadHintPolicy=...) -> None:
        ...

    @property
    def backend_kind(self) -> BackendKind:
        ...

    @property
    def load_hint(self) -> float:
        ...

    @property
    def load_hint_policy(self) -> LoadHintPolicy:
        ...
class ColorSpec:
    CMYK: typing.ClassVar[ColorSpec]
    GRAY: typing.ClassVar[ColorSpec]
    ICC_PROFILE: typing.ClassVar[ColorSpec]
    PALETTE: typing.ClassVar[ColorSpec]
    SRGB: typing.ClassVar[ColorSpec]
    SYCC: typing.ClassVar[ColorSpec]
    UNCHANGED: typing.ClassVar[ColorSpec]
    UNKNOWN: typing.ClassVar[ColorSpec]
    UNSUPPORTED: typing.ClassVar[ColorSpec]
    YCCK: typing.ClassVar[ColorSpec]
    __members__: typing.ClassVar[dict[str, ColorSpec]]

    def __index__(self) -> int:
        ...

    def __init__(self, value: typing.SupportsInt) -> None:
        ...

    def __int__(self) -> int:
        ...

    @property
    def name(self) -> str:
        ...

    @property
    def value(self) -> int:
        ...
class SampleFormat:
    I_AUTO_COMPONENTS: typing.ClassVar[SampleFormat]
    I_BGR: typing.ClassVar[SampleFormat]
    I_CMYK: typing.ClassVar[SampleFormat]
    I_RGB: typing.ClassVar[SampleFormat]
    I_RGBA: typing.ClassVar[SampleFormat]
    I_UNCHANGED: typing.ClassVar[SampleFormat]
    I_Y: typing.ClassVar[SampleFormat]
    I_YA: typing.ClassVar[SampleFormat]
    I_YCC: typing.ClassVar[SampleFormat]
    I_YCCK: typing.ClassVar[SampleFormat]
    I_YUV: typing.ClassVar[SampleFormat]
    P_AUTO_COMPONENTS: typing.ClassVar[SampleFormat]
    P_BGR: typing.ClassVar[SampleFormat]
    P_CMYK: typing.ClassVar[SampleFormat]
    P_RGB: typing.ClassVar[SampleFormat]
    P_RGBA: typing.ClassVar[SampleFormat]
    P_UNCHANGED: typing.ClassVar[SampleFormat]
    P_Y: typing.ClassVar[SampleFormat]
    P_YA: typing.ClassVar[SampleFormat]
    P_YCC: typing.ClassVar[SampleFormat]
    P_YCCK: typing.ClassVar[SampleFormat]
    P_YUV: typing.ClassVar[SampleFormat]
    UNKNOWN: typing.ClassVar[SampleFormat]
    UNSUPPORTED: typing.ClassVar[SampleFormat]
    __members__: typing.ClassVar[dict[str, SampleFormat]]

    def __index__(self) -> int:
        ...

    def __init__(self, value: typing.SupportsInt) -> None:
        ...

    def __int__(self) -> int:
        ...

    @property
    def name(self) -> str:
        ...

    @property
    def value(self) -> int:
        ...
class ChromaSubsampling:
    CSS_410: typing.ClassVar[ChromaSubsampling]
    CSS_410V: typing.ClassVar[ChromaSubsampling]
    CSS_411: typing.ClassVar[ChromaSubsampling]
    CSS_420: typing.ClassVar[ChromaSubsampling]
    CSS_422: typing.ClassVar[ChromaSubsampling]
    CSS_440: typing.ClassVar[ChromaSubsampling]
    CSS_444: typing.ClassVar[ChromaSubsampling]
    CSS_GRAY: typing.ClassVar[ChromaSubsampling]
    __members__: typing.ClassVar[dict[str, ChromaSubsampling]]

    def __index__(self) -> int:
        ...

    def __init__(self, value: typing.SupportsInt) -> None:
        ...

    def __int__(self) -> int:
        ...

    @property
    def name(self) -> str:
        ...

    @property
    def value(self) -> int:
        ...
class ImageBufferKind:
    STRIDED_DEVICE: typing.ClassVar[ImageBufferKind]
    STRIDED_HOST: typing.ClassVar[ImageBufferKind]
    __members__: typing.ClassVar[dict[str, ImageBufferKind]]

    def __index__(self) -> int:
        ...

    def __init__(self, value: typing.SupportsInt) -> None:
        ...

    def __int__(self) -> int:
        ...

    @property
    def name(self) -> str:
        ...

    @property
    def value(self) -> int:
        ...
class DecodeParams:

    @typing.overload
    def __init__(self) -> None:
        ...

    @typing.overload
    def __init__(self, apply_exif_orientation: bool=True, color_spec: ColorSpec=..., allow_any_depth: bool=False, sample_format: SampleFormat=...) -> None:
        ...

    @property
    def allow_any_depth(self) -> bool:
        ...

    @allow_any_depth.setter
    def allow_any_depth(self, arg1: bool) -> None:
        ...

    @property
    def apply_exif_orientation(self) -> bool:
        ...

    @apply_exif_orientation.setter
    def apply_exif_orientation(self, arg1: bool) -> None:
        ...

    @property
    def color_spec(self) -> ColorSpec:
        ...

    @color_spec.setter
    def color_spec(self, arg1: ColorSpec) -> None:
        ...

    @property
    def sample_format(self) -> SampleFormat:
        ...

    @sample_format.setter
    def sample_format(self, arg1: SampleFormat) -> None:
        ...
class Region:

    @typing.overload
    def __init__(self) -> None:
        ...

    @typing.overload
    def __init__(self, start_y: typing.SupportsInt, start_x: typing.SupportsInt, end_y: typing.SupportsInt, end_x: typing.SupportsInt, out_of_bounds_sample: typing.SupportsInt | typing.SupportsInt | typing.SupportsFloat=0) -> None:
        ...

    @typing.overload
    def __init__(self, start: collections.abc.Sequence[typing.SupportsInt], end: collections.abc.Sequence[typing.SupportsInt], out_of_bounds_sample: typing.SupportsInt | typing.SupportsInt | typing.SupportsFloat=0) -> None:
        ...

    @typing.overload
    def __init__(self, start: tuple, end: tuple, out_of_bounds_sample: typing.SupportsInt | typing.SupportsInt | typing.SupportsFloat=0) -> None:
        ...

    @typing.overload
    def __init__(self, start_y: typing.SupportsInt, start_x: typing.SupportsInt, end_y: typing.SupportsInt, end_x: typing.SupportsInt, out_of_bounds_samples: collections.abc.Sequence[typing.SupportsInt | typing.SupportsInt | typing.SupportsFloat]) -> None:
        ...

    @typing.overload
    def __init__(self, start: collections.abc.Sequence[typing.SupportsInt], end: collections.abc.Sequence[typing.SupportsInt], out_of_bounds_samples: collections.abc.Sequence[typing.SupportsInt | typing.SupportsInt | typing.SupportsFloat]) -> None:
        ...

    @typing.overload
    def __init__(self, start: tuple, end: tuple, out_of_bounds_samples: collections.abc.Sequence[typing.SupportsInt | typing.SupportsInt | typing.SupportsFloat]) -> None:
        ...

    @property
    def end(self) -> tuple:
        ...

    @property
    def ndim(self) -> int:
        ...

    @property
    def out_of_bounds_samples(self) -> list[int | int | float]:
        ...

    @property
    def start(self) -> tuple:
        ...
class MetadataFormat:
    JSON: typing.ClassVar[MetadataFormat]
    RAW: typing.ClassVar[MetadataFormat]
    UNKNOWN: typing.ClassVar[MetadataFormat]
    XML: typing.ClassVar[MetadataFormat]
    XMP: typing.ClassVar[MetadataFormat]
    __members__: typing.ClassVar[dict[str, MetadataFormat]]

    def __index__(self) -> int:
        ...

    def __init__(self, value: typing.SupportsInt) -> None:
        ...

    def __int__(self) -> int:
        ...

    @property
    def name(self) -> str:
        ...

    @property
    def value(self) -> int:
        ...
class MetadataKind:
    EXIF: typing.ClassVar[MetadataKind]
    GEO: typing.ClassVar[MetadataKind]
    ICC_PROFILE: typing.ClassVar[MetadataKind]
    MED_APERIO: typing.ClassVar[MetadataKind]
    MED_LEICA: typing.ClassVar[MetadataKind]
    MED_PHILIPS: typing.ClassVar[MetadataKind]
    MED_TRESTLE: typing.ClassVar[MetadataKind]
    MED_VENTANA: typing.ClassVar[MetadataKind]
    TIFF_TAG: typing.ClassVar[MetadataKind]
    TIFF_TAG_LIST: typing.ClassVar[MetadataKind]
    UNKNOWN: typing.ClassVar[MetadataKind]
    __members__: typing.ClassVar[dict[str, MetadataKind]]

    def __index__(self) -> int:
        ...

    def __init__(self, value: typing.SupportsInt) -> None:
        ...

    def __int__(self) -> int:
        ...

    @property
    def name(self) -> str:
        ...

    @property
    def value(self) -> int:
        ...
class MetadataType:
    ASCII: typing.ClassVar[MetadataType]
    BYTE: typing.ClassVar[MetadataType]
    DOUBLE: typing.ClassVar[MetadataType]
    FLOAT: typing.ClassVar[MetadataType]
    IFD: typing.ClassVar[MetadataType]
    IFD8: typing.ClassVar[MetadataType]
    LONG: typing.ClassVar[MetadataType]
    LONG8: typing.ClassVar[MetadataType]
    RATIONAL: typing.ClassVar[MetadataType]
    SBYTE: typing.ClassVar[MetadataType]
    SHORT: typing.ClassVar[MetadataType]
    SLONG: typing.ClassVar[MetadataType]
    SLONG8: typing.ClassVar[MetadataType]
    SRATIONAL: typing.ClassVar[MetadataType]
    SSHORT: typing.ClassVar[MetadataType]
    UNDEFINED: typing.ClassVar[MetadataType]
    UNKNOWN: typing.ClassVar[MetadataType]
    __members__: typing.ClassVar[dict[str, MetadataType]]

    def __index__(self) -> int:
        ...

    def __init__(self, value: typing.SupportsInt) -> None:
        ...

    def __int__(self) -> int:
        ...

    @property
    def name(self) -> str:
        ...

    @property
    def value(self) -> int:
        ...
class Metadata:

    @typing.overload
    def __init__(self) -> None:
        ...

    @typing.overload
    def __init__(self, kind: MetadataKind, format: MetadataFormat, buffer: bytes) -> None:
        ...

    @property
    def buffer(self) -> bytes:
        ...

    @property
    def buffer_size(self) -> int:
        ...

    @property
    def format(self) -> MetadataFormat:
        ...

    @property
    def id(self) -> int:
        ...

    @property
    def kind(self) -> MetadataKind:
        ...

    @property
    def value(self) -> typing.Any:
        ...

    @property
    def value_count(self) -> int:
        ...

    @property
    def value_type(self) -> MetadataType:
        ...
class CodeStreamView:

    def __init__(self, image_idx: typing.SupportsInt=0, region: Region | None=None, bitstream_offset: typing.SupportsInt | None=None) -> None:
        ...

    @property
    def bitstream_offset(self) -> int:
        ...

    @property
    def image_idx(self) -> int:
        ...

    @property
    def region(self) -> Region | None:
        ...
class CodeStream:

    @typing.overload
    def __init__(self, bytes: bytes, bitstream_offset: typing.SupportsInt | None=None) -> None:
        ...

    @typing.overload
    def __init__(self, array: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8], bitstream_offset: typing.SupportsInt | None=None) -> None:
        ...

    @typing.overload
    def __init__(self, filename: os.PathLike | str | bytes, bitstream_offset: typing.SupportsInt | None=None) -> None:
        ...

    @typing.overload
    def __init__(self, pre_allocated_size: typing.SupportsInt=0, pin_memory: bool=True) -> None:
        ...

    @typing.overload
    def get_sub_code_stream(self, image_idx: typing.SupportsInt=0, region: Region | None=None, bitstream_offset: typing.SupportsInt | None=None) -> CodeStream:
        ...

    @typing.overload
    def get_sub_code_stream(self, view: CodeStreamView) -> CodeStream:
        ...

    @property
    def capacity(self) -> int:
        ...

    @property
    def chroma_subsampling(self) -> ChromaSubsampling:
        ...

    @property
    def codec_name(self) -> str:
        ...

    @property
    def color_spec(self) -> ColorSpec:
        ...

    @property
    def dtype(self) -> numpy.dtype[typing.Any]:
        ...

    @property
    def height(self) -> int:
        ...

    @property
    def ifd_offset(self) -> int | None:
        ...

    @property
    def next_ifd_offset(self) -> int | None:
        ...

    @property
    def num_channels(self) -> int:
        ...

    @property
    def num_images(self) -> int:
        ...

    @property
    def num_tiles_x(self) -> int | None:
        ...

    @property
    def num_tiles_y(self) -> int | None:
        ...

    @property
    def pin_memory(self) -> bool:
        ...

    @property
    def precision(self) -> int:
        ...

    @property
    def sample_format(self) -> SampleFormat:
        ...

    @property
    def size(self) -> int:
        ...

    @property
    def subifd_offsets(self) -> list[int]:
        ...

    @property
    def tile_height(self) -> int | None:
        ...

    @property
    def tile_offset_x(self) -> int | None:
        ...

    @property
    def tile_offset_y(self) -> int | None:
        ...

    @property
    def tile_width(self) -> int | None:
        ...

    @property
    def view(self) -> CodeStreamView | None:
        ...

    @property
    def width(self) -> int:
        ...
class Image:

    def __array__(self, dtype: typing.Any=None, copy: typing.Any=None) -> typing.Any:
        ...

    def __dlpack__(self, stream: typing.Any=None) -> typing_extensions.CapsuleType:
        ...

    def __dlpack_device__(self) -> tuple:
        ...

    def cpu(self) -> typing.Any:
        ...

    def cuda(self, synchronize: bool=True, device_id: typing.SupportsInt=-1, cuda_stream: typing.SupportsInt=0) -> typing.Any:
        ...

    def to_dlpack(self, cuda_stream: typing.Any=None) -> typing_extensions.CapsuleType:
        ...

    @property
    def __array_interface__(self) -> dict:
        ...

    @property
    def __cuda_array_interface__(self) -> dict:
        ...

    @property
    def buffer_kind(self) -> ImageBufferKind:
        ...

    @property
    def capacity(self) -> int:
        ...

    @property
    def color_spec(self) -> ColorSpec:
        ...

    @property
    def cuda_stream(self) -> int | None:
        ...

    @property
    def device_id(self) -> int | None:
        ...

    @property
    def dtype(self) -> typing.Any:
        ...

    @property
    def height(self) -> int:
        ...

    @property
    def ndim(self) -> int:
        ...

    @property
    def num_channels(self) -> int:
        ...

    @property
    def precision(self) -> int:
        ...

    @property
    def sample_format(self) -> SampleFormat:
        ...

    @property
    def shape(self) -> tuple:
        ...

    @property
    def size(self) -> int:
        ...

    @property
    def strides(self) -> tuple:
        ...

    @property
    def width(self) -> int:
        ...
class Decoder:

    def __enter__(self) -> typing.Any:
        ...

    def __exit__(self, exc_type: type | None=None, exc_value: typing.Any | None=None, traceback: typing.Any | None=None) -> None:
        ...

    def __init__(self, device_id: typing.SupportsInt=-1, max_num_cpu_threads: typing.SupportsInt=0, backends: collections.abc.Sequence[Backend] | None=None, options: str='') -> None:
        ...

    @typing.overload
    def decode(self, src: CodeStream, *, image: Image | None=None, params: DecodeParams | None=None, cuda_stream: typing.SupportsInt=0) -> typing.Any:
        ...

    @typing.overload
    def decode(self, srcs: collections.abc.Sequence[CodeStream], *, images: collections.abc.Sequence[Image] | None=None, params: DecodeParams | None=None, cuda_stream: typing.SupportsInt=0) -> list[typing.Any]:
        ...

    @typing.overload
    def get_metadata(self, code_stream: CodeStream, *, kind: MetadataKind | None=None) -> typing.Any:
        ...

    @typing.overload
    def get_metadata(self, code_stream: CodeStream, *, id: typing.SupportsInt, kind: MetadataKind=...) -> Metadata | None:
        ...

    @typing.overload
    def read(self, path: CodeStream, *, image: Image | None=None, params: DecodeParams | None=None, cuda_stream: typing.SupportsInt=0) -> typing.Any:
        ...

    @typing.overload
    def read(self, paths: collections.abc.Sequence[CodeStream], *, images: collections.abc.Sequence[Image] | None=None, params: DecodeParams | None=None, cuda_stream: typing.SupportsInt=0) -> list[typing.Any]:
        ...

    @property
    def device_id(self) -> int:
        ...
NVIMGCODEC_DEVICE_CPU_ONLY: int = -99999
