"""Reading a DLPack capsule: where an array lies, what its elements are, and in which order.

The layout is that of dlpack.h (https://github.com/dmlc/dlpack, DLManagedTensor of versions below 1): the capsules that
`__dlpack__` gives when no version is asked for.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Final, cast

CPU: Final = 1
CUDA: Final = 2
# Pinned host memory and managed memory: the first is read as host memory, the second as the device's.
CUDA_HOST: Final = 3
CUDA_MANAGED: Final = 13
HOST_KINDS: Final = (CPU, CUDA_HOST)
DEVICE_KINDS: Final = (CUDA, CUDA_MANAGED)
# A consumer that waits for the device by itself asks the producer not to.
_NO_STREAM: Final = -1
_CODES: Final = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_FLOAT8: Final = {10: "float8_e4m3fn", 11: "float8_e4m3fnuz", 12: "float8_e5m2", 13: "float8_e5m2fnuz"}
_FLOAT8_SCALE: Final = 14


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("rank", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


@dataclass(frozen=True, slots=True)
class Exported:
    """An array as its owner exports it.

    Attributes
    ----------
    pointer : of its first byte, in the memory of the device kind and id.
    dtype : numpy's name for the elements; "" for one that has none.
    is_contiguous : whether the elements lie in C order without gaps.
    owner : keeps the memory.
    """

    pointer: int
    device_kind: int
    device_id: int
    dtype: str
    shape: tuple[int, ...]
    is_contiguous: bool
    owner: object


def read_array(array: Any) -> Exported:
    """What an object with `__dlpack__` exports; it raises what the object raises."""
    kind, _ = array.__dlpack_device__()
    capsule = array.__dlpack__(stream=_NO_STREAM) if kind in DEVICE_KINDS else array.__dlpack__()
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = ctypes.cast(pointer_of(capsule, b"dltensor"), ctypes.POINTER(_Tensor)).contents
    shape = tuple(tensor.shape[axis] for axis in range(tensor.rank))
    # A capsule that nobody renames frees its tensor when it goes: it is the owner that we keep.
    return Exported(
        pointer=(tensor.data or 0) + tensor.byte_offset,
        device_kind=tensor.device.kind,
        device_id=tensor.device.id,
        dtype=_name_of(tensor.dtype),
        shape=shape,
        is_contiguous=_is_contiguous(shape, tensor.strides),
        owner=(capsule, array),
    )


def is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether strides, in elements or in multiples of a common unit of the last axis, are those of C order."""
    expected = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length == 0:
            return True
        if length > 1 and stride != expected:
            return False
        expected *= length
    return True


def _is_contiguous(shape: tuple[int, ...], strides: Any) -> bool:
    if not strides:
        return True
    return is_contiguous(shape, tuple(cast(int, strides[axis]) for axis in range(len(shape))))


def _name_of(dtype: _DataType) -> str:
    code, bits, lanes = dtype.code, dtype.bits, dtype.lanes
    if lanes != 1:
        return ""
    if bits == 8 and code in _FLOAT8:
        return _FLOAT8[code]
    if bits == 8 and code == _FLOAT8_SCALE:
        return "float8_e8m0fnu"
    name = _CODES.get(code, "")
    if name == "bool":
        return name
    if name == "bfloat":
        return "bfloat16" if bits == 16 else ""
    return f"{name}{bits}" if name else ""
