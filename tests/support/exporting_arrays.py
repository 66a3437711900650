"""Arrays that export their memory in one way only, as the libraries do that are not needed for testing."""

from __future__ import annotations

import ctypes
from typing import Any

CPU, CUDA = 1, 2
_NEW = ctypes.pythonapi.PyCapsule_New
_NEW.restype, _NEW.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """DLManagedTensor of dlpack.h, flat."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class DlpackArray:
    """Exports DLPack, as torch does; `type_code` and `bits` as in dlpack.h."""

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        type_code: int,
        bits: int,
        *,
        device_kind: int = CPU,
        strides: tuple[int, ...] | None = None,
        owner: object = None,
    ) -> None:
        rank = len(shape)
        self._owner = owner
        self._shape = (ctypes.c_int64 * rank)(*shape)
        self._strides = (ctypes.c_int64 * rank)(*strides) if strides else None
        strides_pointer = ctypes.cast(self._strides, ctypes.POINTER(ctypes.c_int64)) if strides else None
        self._managed = _Managed(
            address, device_kind, 0, rank, type_code, bits, 1, self._shape, strides_pointer, 0, None, None
        )
        self.stream: Any = "nobody has asked"

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._managed.device_kind, 0

    def __dlpack__(self, stream: Any = None) -> object:
        self.stream = stream
        return _NEW(ctypes.addressof(self._managed), b"dltensor", None)


class InterfaceArray:
    """Exports `__array_interface__` alone, as arrays of elements do that the buffer protocol has no letter for."""

    def __init__(self, data: bytes, shape: tuple[int, ...], typestr: str, dtype: str) -> None:
        self._data = ctypes.create_string_buffer(data, len(data))
        self.dtype = dtype
        self.__array_interface__ = {
            "shape": shape,
            "typestr": typestr,
            "data": (ctypes.addressof(self._data), False),
            "strides": None,
            "version": 3,
        }
