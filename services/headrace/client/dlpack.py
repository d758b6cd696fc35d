"""A DLPack capsule over memory at an address, so that torch, jax, cupy and numpy take it over without a copy.

The structures are those of DLPack's C header, in the unversioned form that all of them read.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

# (type code, bits) of DLDataType
_DTYPES = {"uint8": (1, 8), "float16": (2, 16), "float32": (2, 32), "bfloat16": (4, 16)}
_NAME = b"dltensor"


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("ordinal", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, _Destructor)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p)

# What lent tensors need to stay, by the address of their structure, until their takers call the deleter, on any thread.
_lent: dict[int, tuple[Any, ...]] = {}
_lock = threading.Lock()


def _give_back(address: int) -> None:
    with _lock:
        _lent.pop(address, None)


def _capsule_ends(capsule: int) -> None:
    """One that was taken over has another name by now, and its deleter is the taker's to call."""
    if _is_valid(capsule, _NAME):
        _give_back(_pointer(capsule, _NAME))


_delete, _destroy = _Deleter(_give_back), _Destructor(_capsule_ends)


def capsule(owner: object, pointer: int, shape: tuple[int, ...], dtype: str, device: tuple[int, int]) -> Any:
    """A capsule for `__dlpack__`. owner: kept alive as long as the memory is lent. dtype: one of the pipeline's."""
    sides = (ctypes.c_int64 * len(shape))(*shape)
    strides = (ctypes.c_int64 * len(shape))()
    step = 1
    for axis in reversed(range(len(shape))):
        strides[axis], step = step, step * shape[axis]
    code, bits = _DTYPES[dtype]
    tensor = _Tensor(pointer, _Device(*device), len(shape), _DataType(code, bits, 1), sides, strides, 0)
    managed = _Managed(tensor, None, _delete)
    address = ctypes.addressof(managed)
    with _lock:
        _lent[address] = (managed, sides, strides, owner)
    return _new(address, _NAME, _destroy)
