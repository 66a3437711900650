"""Known containers of tensors: where their tensors lie in a file, so that pieces of a tensor meet its earlier version.

A file is believed only as far as it is consistent. Anything else is bytes: `read_container` answers None, raises
nothing but the source's own OSError, allocates within fixed bounds, and never runs or unpickles anything.
"""

from __future__ import annotations

from typing import Final

from .gguf import MAGIC as _GGUF_MAGIC
from .gguf import read_gguf
from .numpy_files import MAGIC as _NPY_MAGIC
from .numpy_files import read_npy, read_npz
from .safetensors import may_start, read_safetensors
from .tensors import TENSOR_SIZE_BYTES_MIN, ByteSource, Container, MalformedError, Tensor
from .torch_zip import PICKLE_NAME, read_torch
from .zip_directory import MAGIC as _ZIP_MAGIC
from .zip_directory import read_archives

__all__ = ["TENSOR_SIZE_BYTES_MIN", "ByteSource", "Container", "Tensor", "may_be_container", "read_container"]

_SUFFIXES: Final = (
    b".safetensors",
    b".sft",
    b".pt",
    b".pth",
    b".pt.tar",
    b".pth.tar",
    b".bin",
    b".ckpt",
    b".distcp",
    b".npy",
    b".npz",
    b".gguf",
)
_FIRST_SIZE_BYTES: Final = 16


def may_be_container(name: bytes, size: int) -> bool:
    """Whether a file is worth opening for `read_container`: by its name's end, and by room for one large tensor."""
    return size > TENSOR_SIZE_BYTES_MIN and name.lower().endswith(_SUFFIXES)


def read_container(source: ByteSource) -> Container | None:
    """The tensors of a file, or None if it is no container that is known, whole and consistent.

    The first bytes decide alone about the format. Reads the headers, never the tensors' bytes.

    Parameters
    ----------
    source : at least the headers are read from it, in pieces of at most 16 MiB.

    Raises
    ------
    OSError
        As the source raises it.
    """
    try:
        return _read(source, source.read(0, min(_FIRST_SIZE_BYTES, source.size)))
    except MalformedError:
        return None


def _read(source: ByteSource, first: bytes) -> Container | None:
    if first.startswith(_NPY_MAGIC):
        return read_npy(source)
    if first.startswith(_GGUF_MAGIC):
        return read_gguf(source)
    if first.startswith(_ZIP_MAGIC):
        return _read_zip(source)
    return read_safetensors(source) if may_start(first, source.size) else None


def _read_zip(source: ByteSource) -> Container:
    archives = read_archives(source)
    if any(entry.name.endswith(PICKLE_NAME) for entries in archives for entry in entries):
        return read_torch(source, archives)
    return read_npz(source, [entry for entries in archives for entry in entries])
