"""Arrays of any library as named runs of bytes: where each lies, what its elements are, its shape.

Understood are `__cuda_array_interface__`, the buffer protocol, `__array_interface__` and DLPack, so numpy, torch, jax
and cupy are all read without importing one of them. Nothing is copied but arrays whose elements do not lie in C order.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from ohdiff.chunking.device_memory import DeviceMemory
from ohdiff.errors import UsageError

from . import dlpack

# safetensors' words for elements, by numpy's names, which torch and jax share; and the bytes of one. In the order of
# safetensors' own enumeration: its writer lays tensors out from the last kind to the first.
_WORDS: Final = {
    "bool": ("BOOL", 1),
    "uint8": ("U8", 1),
    "int8": ("I8", 1),
    "float8_e5m2": ("F8_E5M2", 1),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e8m0fnu": ("F8_E8M0", 1),
    "float8_e4m3fnuz": ("F8_E4M3FNUZ", 1),
    "float8_e5m2fnuz": ("F8_E5M2FNUZ", 1),
    "int16": ("I16", 2),
    "uint16": ("U16", 2),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "int32": ("I32", 4),
    "uint32": ("U32", 4),
    "float32": ("F32", 4),
    "complex64": ("C64", 8),
    "float64": ("F64", 8),
    "int64": ("I64", 8),
    "uint64": ("U64", 8),
}
_RANKS: Final = {word: rank for rank, (word, _) in enumerate(_WORDS.values())}
NAMES_BY_WORD: Final = {word: name for name, (word, _) in _WORDS.items()}
WIDTHS_BY_WORD: Final = dict(_WORDS.values())
# What the letters of the buffer protocol and of the array interface mean; sizes of C types as on every 64-bit Unix.
_FORMATS: Final = {
    "d": "float64",
    "f": "float32",
    "e": "float16",
    "q": "int64",
    "l": "int64",
    "i": "int32",
    "h": "int16",
    "b": "int8",
    "Q": "uint64",
    "L": "uint64",
    "I": "uint32",
    "H": "uint16",
    "B": "uint8",
    "c": "uint8",
    "?": "bool",
    "Zf": "complex64",
}
_TYPE_LETTERS: Final = {"f": "float", "i": "int", "u": "uint", "c": "complex"}
# What an owner raises who cannot export an array in one of the ways: the next way is tried.
_REFUSALS: Final = (AttributeError, TypeError, RuntimeError, ValueError, BufferError)


@dataclass(frozen=True, slots=True, eq=False)
class TensorMemory:
    """The bytes of one array, in C order, where they lie.

    Parameters
    ----------
    dtype : safetensors' word for the elements.
    size : bytes.
    memory : host memory as bytes, or memory of a device; it keeps its owner.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    memory: memoryview | DeviceMemory

    @property
    def is_on_device(self) -> bool:
        """Whether it has to be copied to be read here."""
        return isinstance(self.memory, DeviceMemory)


@dataclass(frozen=True, slots=True)
class _Found:
    """What an export says; `memory` is None if the elements are not in C order."""

    dtype: str
    shape: tuple[int, ...]
    memory: memoryview | DeviceMemory | None


def tensor_memories(arrays: Mapping[str, Any]) -> list[TensorMemory]:
    """The arrays in the order in which safetensors' own writer lays them out: by kind, the widest first, then by name.

    Raises
    ------
    UsageError
        An array cannot be read, or has elements that safetensors does not know.
    """
    if not arrays:
        raise UsageError("there is no tensor to be snapshotted", hint="give a mapping of names to arrays")
    found = [_tensor_memory(name, array) for name, array in arrays.items()]
    return sorted(found, key=lambda tensor: (-_RANKS[tensor.dtype], tensor.name))


def _tensor_memory(name: str, array: Any) -> TensorMemory:
    if not isinstance(name, str):
        raise UsageError(f"a tensor's name is {type(name).__name__}, not text")
    found = _find(array)
    if found is not None and found.memory is None:
        found = _copied(array, found)
    if found is None or found.memory is None:
        raise UsageError(
            f"tensor {name!r}: a {type(array).__name__} is no array that can be read",
            hint="give arrays with a buffer, __array_interface__, __cuda_array_interface__ or __dlpack__",
            item=name,
        )
    dtype = _dtype_of(array) or found.dtype
    if dtype not in _WORDS:
        raise UsageError(
            f"tensor {name!r}: safetensors has no elements of type {dtype or 'unknown'}",
            hint="convert it, or save it as a file of another format",
            item=name,
        )
    word, width = _WORDS[dtype]
    memory = found.memory
    size = math.prod(found.shape) * width
    if size != (memory.size if isinstance(memory, DeviceMemory) else memory.nbytes):
        raise UsageError(f"tensor {name!r}: its bytes are not those of {dtype} {list(found.shape)}", item=name)
    return TensorMemory(name, word, found.shape, size, memory)


def _find(array: Any) -> _Found | None:
    """The first way in which an array can be read."""
    for way in (_of_cuda_interface, _of_buffer, _of_array_interface, _of_dlpack):
        with suppress(*_REFUSALS):
            found = way(array)
            if found is not None:
                return found
    detach = getattr(array, "detach", None)
    if getattr(array, "requires_grad", False) and callable(detach):
        return _find(detach())
    return None


def _dtype_of(array: Any) -> str:
    """The name of the elements' type as the array's library says it; "" for a plain buffer."""
    dtype = getattr(array, "dtype", None)
    if dtype is None:
        return ""
    return str(dtype).removeprefix("torch.")


def _of_cuda_interface(array: Any) -> _Found:
    interface = array.__cuda_array_interface__
    shape = tuple(interface["shape"])
    dtype, width = _of_typestr(interface["typestr"])
    if not _is_in_c_order(shape, interface.get("strides"), width):
        return _Found(dtype, shape, None)
    size = math.prod(shape) * width
    # Which device it is, the driver knows by the pointer.
    return _Found(dtype, shape, DeviceMemory(interface["data"][0], size, None, array))


def _of_buffer(array: Any) -> _Found:
    view = memoryview(array)
    shape = view.shape or ()
    letters = view.format.lstrip("@=<|")
    dtype = _FORMATS.get(letters, letters)
    if view.nbytes == 0:
        return _Found(dtype, shape, memoryview(b""))
    if not view.c_contiguous:
        return _Found(dtype, shape, None)
    return _Found(dtype, shape, view.cast("B"))


def _of_array_interface(array: Any) -> _Found:
    interface = array.__array_interface__
    shape = tuple(interface["shape"])
    dtype, width = _of_typestr(interface["typestr"])
    if not _is_in_c_order(shape, interface.get("strides"), width):
        return _Found(dtype, shape, None)
    return _Found(dtype, shape, _host_view(interface["data"][0], math.prod(shape) * width, array))


def _of_dlpack(array: Any) -> _Found | None:
    exported = dlpack.read_array(array)
    if not exported.is_contiguous:
        return _Found(exported.dtype, exported.shape, None)
    size = math.prod(exported.shape) * (_WORDS[exported.dtype][1] if exported.dtype in _WORDS else 1)
    if exported.device_kind in dlpack.HOST_KINDS:
        return _Found(exported.dtype, exported.shape, _host_view(exported.pointer, size, exported.owner))
    if exported.device_kind in dlpack.DEVICE_KINDS:
        memory = DeviceMemory(exported.pointer, size, exported.device_id, exported.owner)
        return _Found(exported.dtype, exported.shape, memory)
    return None


def _of_typestr(typestr: str) -> tuple[str, int]:
    """The name and size of an element that the array interface describes, such as "<f4"."""
    order, letter, width = typestr[0], typestr[1], int(typestr[2:])
    if letter == "b":
        return "bool", width
    name = f"{_TYPE_LETTERS.get(letter, typestr)}{8 * width}"
    return (f"big-endian {name}" if order == ">" and width > 1 else name), width


def _is_in_c_order(shape: tuple[int, ...], strides: Any, width: int) -> bool:
    if strides is None:
        return True
    in_elements = tuple(stride / width for stride in strides)
    return dlpack.is_contiguous(shape, in_elements)


def _copied(array: Any, found: _Found) -> _Found | None:
    """An array whose elements lie in another order, as a copy: on the device if it is there."""
    contiguous, copy = getattr(array, "contiguous", None), getattr(array, "copy", None)
    if callable(contiguous):
        return _find(contiguous())
    if hasattr(array, "__cuda_array_interface__"):
        return _find(copy(order="C")) if callable(copy) else None
    to_bytes = getattr(array, "tobytes", None)
    try:
        data = to_bytes() if callable(to_bytes) else memoryview(array).tobytes()
    except _REFUSALS:
        return None
    return _Found(found.dtype, found.shape, memoryview(data))


def _host_view(pointer: int, size: int, owner: object) -> memoryview:
    """Host memory that somebody else owns, as bytes that keep the owner."""
    if size == 0:
        return memoryview(b"")
    kind: Any = type("_Borrowed", (ctypes.c_ubyte * size,), {})
    borrowed = kind.from_address(pointer)
    borrowed.owner = owner
    return memoryview(borrowed).cast("B")
