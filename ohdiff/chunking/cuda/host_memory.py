"""Addresses of host memory: the one thing that copies to a device need and Python's buffers do not say."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing_extensions import Buffer

_SIMPLE: Final = 0
_WRITABLE: Final = 1


class _PyBuffer(ctypes.Structure):
    """Py_buffer of CPython's stable ABI."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


@contextmanager
def address_of(data: Buffer, *, writable: bool = False) -> Iterator[tuple[int, int]]:
    """The address and size in bytes of a contiguous buffer, which is held meanwhile; BufferError if it is none."""
    view = _PyBuffer()
    get, release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
    get.argtypes = (ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int)
    release.argtypes, release.restype = (ctypes.POINTER(_PyBuffer),), None
    get(data, view, _WRITABLE if writable else _SIMPLE)
    try:
        yield view.buf or 0, view.len
    finally:
        release(view)


def copy(target: int, source: int, size: int) -> None:
    """Host to host, without the interpreter's lock."""
    ctypes.memmove(target, source, size)


def read(address: int, size: int) -> bytes:
    """A copy of some bytes."""
    return ctypes.string_at(address, size)
