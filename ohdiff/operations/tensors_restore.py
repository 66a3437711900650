"""Arrays out of a safetensors file in a snapshot: numpy's where it is installed, CuPy's on a device, or plain ones."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from ohdiff.chunking.containers import Tensor, read_container
from ohdiff.chunking.cuda.host_memory import address_of
from ohdiff.errors import UsageError
from ohdiff.repository.chunk_reader import ChunkReader
from ohdiff.repository.snapshots import StoredSnapshot, find_snapshot

from .chunk_source import ChunkSource
from .opening import RepositoryPlace, opened
from .tensor_arrays import NAMES_BY_WORD, WIDTHS_BY_WORD
from .tree_reader import Entry, TreeReader

# Element types that numpy has no name of its own for; ml_dtypes adds them.
_ADDED_TYPES: Final = ("bfloat16", "float8")
_LETTERS: Final = {"F": "f", "I": "i", "U": "u", "C": "c"}


class RestoredTensor:
    """An array without a library: bytes, with what they mean.

    Attributes
    ----------
    name : in the file.
    dtype : numpy's name for the elements, such as "bfloat16".
    shape : lengths of the axes.
    data : the bytes in C order: a memoryview, or an array of bytes on a device.

    `__array_interface__`, or `__cuda_array_interface__` on a device, lets libraries read it without a copy; elements
    that the interface has no letter for are described as opaque ("<V2").
    """

    def __init__(self, name: str, word: str, shape: tuple[int, ...], data: Any) -> None:
        self.name = name
        self.dtype = NAMES_BY_WORD[word]
        self.shape = shape
        self.data = data
        self._typestr = _typestr_of(word)

    @property
    def is_on_device(self) -> bool:
        """Whether its bytes lie on a device."""
        return not isinstance(self.data, memoryview)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(self.data.nbytes)

    def tobytes(self) -> bytes:
        """A copy of the bytes."""
        return bytes(self.data.tobytes())

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self.is_on_device:
            raise AttributeError("the tensor lies on a device")
        with address_of(self.data) as (address, _):
            return {"shape": self.shape, "typestr": self._typestr, "data": (address, self.data.readonly), "version": 3}

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if not self.is_on_device:
            raise AttributeError("the tensor does not lie on a device")
        interface = self.data.__cuda_array_interface__
        return {**interface, "shape": self.shape, "typestr": self._typestr, "strides": None}

    def __repr__(self) -> str:
        return f"RestoredTensor({self.name!r}, {self.dtype}, {list(self.shape)})"


def restore_tensors(
    repo: RepositoryPlace,
    snapshot: StoredSnapshot | str = "latest",
    path: str | None = None,
    *,
    names: Iterable[str] | None = None,
    device: str = "cpu",
    is_plain: bool = False,
    threads: int = 2,
    password: str | bytes | None = None,
    key_file: str | os.PathLike[str] | None = None,
    cache_folder: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """The tensors of a safetensors file in a snapshot, by name, each chunk verified.

    Parameters
    ----------
    snapshot : it, "latest", "latest~N", or the beginning of its id.
    path : of the file; None for the only path of the snapshot.
    names : which tensors; None for all.
    device : "cpu" for numpy arrays, writable; "cuda" or "cuda:N" for CuPy's. Elements that the library cannot express
        come as `RestoredTensor`.
    is_plain : give `RestoredTensor` in any case.

    Raises
    ------
    NoSnapshotError
        There is no such snapshot or file.
    UsageError
        The file is no safetensors file, or has no such tensor.
    DeviceError
        The device cannot be used, or has not enough memory.
    """
    place = _placing(device, is_plain=is_plain)
    with opened(repo, password, key_file, cache_folder) as (repository, index):
        chunks = ChunkReader(repository, index)
        tree = TreeReader(chunks)
        stored = snapshot if isinstance(snapshot, StoredSnapshot) else find_snapshot(repository, snapshot)
        file = _StoredBytes(chunks, tree, _entry(tree, stored, path))
        container = read_container(file)
        if container is None or container.format != "safetensors":
            raise UsageError(f"{file.path} is not a safetensors file", hint="restore it with: ohdiff restore")
        wanted = _chosen(container.tensors, names)
        with ThreadPoolExecutor(threads, thread_name_prefix="decoder") as decoders:
            return {tensor.name: place(tensor, file.fill(tensor.start, tensor.size, decoders)) for tensor in wanted}


class _StoredBytes(ChunkSource):
    """A file of a snapshot, read at any offset."""

    def __init__(self, chunks: ChunkReader, tree: TreeReader, entry: Entry) -> None:
        super().__init__(tree.joined(entry.content), chunks.read)
        self.path = entry.path.decode(errors="backslashreplace")
        if self.size != entry.size:
            raise UsageError(f"{self.path} has holes; it is not read as tensors", hint="restore it: ohdiff restore")

    def fill(self, offset: int, size: int, decoders: ThreadPoolExecutor) -> bytearray:
        """Some bytes, the chunks of which are decoded side by side."""
        target = bytearray(size)
        end = offset + size

        def copy(row: int) -> None:
            start, data = self._part(row, offset, end)
            with memoryview(target) as view:
                view[start - offset : start - offset + len(data)] = data

        for _ in decoders.map(copy, self._rows(offset, end)):
            pass
        return target


def _entry(tree: TreeReader, stored: StoredSnapshot, path: str | None) -> Entry:
    if path is None:
        if len(stored.snapshot.paths) != 1:
            raise UsageError("the snapshot has several paths", hint="name the file")
        found = tree.find(stored.root, stored.snapshot.paths[0])
    else:
        found = tree.find(stored.root, os.fsencode(path))
    if found is None or not found.is_file:
        raise UsageError("there is no file at this path of the snapshot", hint="look with: ohdiff ls")
    return found


def _chosen(tensors: Sequence[Tensor], names: Iterable[str] | None) -> list[Tensor]:
    known = {tensor.name: tensor for tensor in tensors}
    chosen = list(known) if names is None else list(names)
    for name in chosen:
        if name not in known:
            raise UsageError(f"the file has no tensor {name!r}", hint=f"it has {', '.join(list(known)[:8])}", item=name)
        if known[name].dtype not in NAMES_BY_WORD:
            raise UsageError(f"tensor {name!r} has elements of unknown type {known[name].dtype}", item=name)
    return [known[name] for name in chosen]


def _placing(device: str, *, is_plain: bool) -> Callable[[Tensor, bytearray], Any]:
    """What makes an array of a tensor's bytes."""
    if device == "cpu":
        return _plain if is_plain else _numpy_array
    kind, _, number = device.partition(":")
    if kind != "cuda" or (number and not number.isdecimal()):
        raise UsageError(f"unknown device {device!r}", hint="use cpu, cuda, or cuda:N")
    from ohdiff.chunking.cuda.device import CudaDevice

    opened_device = CudaDevice(int(number or 0))

    def place(tensor: Tensor, data: bytearray) -> Any:
        if not is_plain:
            name = NAMES_BY_WORD[tensor.dtype]
            try:
                _know_type(name)
                return opened_device.new_array(tensor.shape, name, data)
            except (ImportError, TypeError):
                pass
        octets = opened_device.new_array((len(data),), "uint8", data)
        return RestoredTensor(tensor.name, tensor.dtype, tensor.shape, octets)

    return place


def _plain(tensor: Tensor, data: bytearray) -> RestoredTensor:
    return RestoredTensor(tensor.name, tensor.dtype, tensor.shape, memoryview(data))


def _numpy_array(tensor: Tensor, data: bytearray) -> Any:
    name = NAMES_BY_WORD[tensor.dtype]
    try:
        numpy: Any = importlib.import_module("numpy")
        _know_type(name)
        return numpy.frombuffer(data, dtype=numpy.dtype(name)).reshape(tensor.shape)
    except (ImportError, TypeError):
        return _plain(tensor, data)


def _know_type(name: str) -> None:
    """Teach numpy an element type that is not its own; ImportError if nobody can."""
    if name.startswith(_ADDED_TYPES):
        importlib.import_module("ml_dtypes")


def _typestr_of(word: str) -> str:
    """How the array interface describes elements."""
    width = WIDTHS_BY_WORD[word]
    if word == "BOOL":
        return "|b1"
    order = "|" if width == 1 else "<"
    is_own = word[1:].isdecimal()
    return f"{order}{_LETTERS[word[0]]}{width}" if is_own else f"{order}V{width}"
