"""torch.save's zip files: storages lie uncompressed under */data/, their types and names in the pickle */data.pkl.

What cannot be understood of the pickle costs kinds and names, not ranges. A .distcp file of a distributed checkpoint is
a run of such archives, one for each tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ohdiff_format.numbers import NumberKind

from .pickle_scan import StorageRef, TensorRef, scan_pickle
from .tensors import (
    HEADER_SIZE_BYTES_MAX,
    ByteSource,
    Container,
    MalformedError,
    Tensor,
    elements_of,
    judged,
    read_exactly,
)
from .zip_directory import Entry

PICKLE_NAME: Final = "/data.pkl"

_CLASSES: Final[dict[str, tuple[int, NumberKind | None]]] = {
    "DoubleStorage": (8, NumberKind.F64),
    "FloatStorage": (4, NumberKind.F32),
    "HalfStorage": (2, NumberKind.F16),
    "BFloat16Storage": (2, NumberKind.BF16),
    "LongStorage": (8, NumberKind.I64),
    "IntStorage": (4, NumberKind.I32),
    "ShortStorage": (2, NumberKind.I16),
    "CharStorage": (1, NumberKind.I8),
    "ByteStorage": (1, NumberKind.I8),
}
_DTYPES: Final = {
    "float64": NumberKind.F64,
    "float32": NumberKind.F32,
    "float16": NumberKind.F16,
    "bfloat16": NumberKind.BF16,
    "float8_e4m3fn": NumberKind.F8,
    "float8_e5m2": NumberKind.F8,
    "float8_e4m3fnuz": NumberKind.F8,
    "float8_e5m2fnuz": NumberKind.F8,
    "float8_e8m0fnu": NumberKind.F8,
    "int64": NumberKind.I64,
    "int32": NumberKind.I32,
    "int16": NumberKind.I16,
    "int8": NumberKind.I8,
    "uint64": NumberKind.I64,
    "uint32": NumberKind.I32,
    "uint16": NumberKind.I16,
    "uint8": NumberKind.I8,
}
_UNTYPED: Final = "UntypedStorage"
_UNKNOWN: Final = "unknown"


def read_torch(source: ByteSource, archives: list[list[Entry]]) -> Container:
    """The storages of every archive, each named by the path to its first tensor, or as its entry where that is not one.

    Raises
    ------
    MalformedError
        There is no storage.
    """
    tensors: list[Tensor] = []
    budget = HEADER_SIZE_BYTES_MAX
    for number, entries in enumerate(archives):
        prefix = f"{number}/" if len(archives) > 1 else ""
        pickled = _pickle_entry(entries)
        size = 0 if pickled is None else pickled.end - pickled.start
        described = _Description(source, entries, pickled if size <= budget else None)
        budget -= min(size, budget)
        tensors.extend(described.tensors(prefix))
    return judged("torch", _with_unique_names(tensors), source.size)


def _pickle_entry(entries: list[Entry]) -> Entry | None:
    found = [entry for entry in entries if entry.name.endswith(PICKLE_NAME) and entry.name.count("/") == 1]
    return found[0] if len(found) == 1 else None


class _Description:
    """What the pickle of one archive says of its storages."""

    def __init__(self, source: ByteSource, entries: list[Entry], pickled: Entry | None) -> None:
        self._entries = entries
        self._root = "" if pickled is None else pickled.name.removesuffix(PICKLE_NAME)
        self._storages: dict[str, StorageRef | None] = {}
        self._views: dict[str, list[tuple[str, TensorRef]]] = {}
        if pickled is None or not _is_little_endian(source, entries, self._root):
            return
        try:
            storages, tensors = scan_pickle(read_exactly(source, pickled.start, pickled.end - pickled.start))
        except MalformedError:
            return
        for storage in storages:
            # Two descriptions of one storage that differ are believed neither.
            known = self._storages.setdefault(storage.key, storage)
            self._storages[storage.key] = storage if known == storage else None
        for path, tensor in tensors:
            self._views.setdefault(tensor.storage.key, []).append((path, tensor))

    def tensors(self, prefix: str) -> Iterator[Tensor]:
        for entry in self._entries:
            root, separator, key = entry.name.rpartition("/data/")
            if separator and "/" not in root and root == (self._root or root):
                yield self._tensor(entry, key, f"{prefix}data/{key}", prefix)

    def _tensor(self, entry: Entry, key: str, entry_label: str, prefix: str) -> Tensor:
        size, views, storage = entry.end - entry.start, self._views.get(key, []), self._storages.get(key)
        dtype = _UNKNOWN if storage is None else storage.class_name
        if dtype == _UNTYPED:
            dtype = _common_dtype(views)
        kind = _kind(storage, dtype, size)
        count = size if kind is None else size // kind.width
        # The whole of a storage names it better than a view into it.
        whole = next((view for view in views if _is_whole(view[1], count)), None)
        named = whole or (views[0] if views else None)
        name = prefix + named[0] if named is not None and named[0] else entry_label
        shape = (count,) if whole is None else whole[1].shape
        return Tensor(name, kind, dtype, shape, entry.start, entry.end)


def _is_little_endian(source: ByteSource, entries: list[Entry], root: str) -> bool:
    """Old files do not say; they were written on little-endian machines."""
    entry = next((entry for entry in entries if entry.name == f"{root}/byteorder"), None)
    return entry is None or read_exactly(source, entry.start, min(8, entry.end - entry.start)) == b"little"


def _common_dtype(views: list[tuple[str, TensorRef]]) -> str:
    dtypes = {tensor.dtype for _, tensor in views}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    return dtype or _UNKNOWN


def _kind(storage: StorageRef | None, dtype: str, size: int) -> NumberKind | None:
    """The kind, if the entry has the size that the pickle says."""
    if storage is None:
        return None
    if storage.class_name == _UNTYPED:
        kind = _DTYPES.get(dtype)
        return kind if kind is not None and storage.count == size and size % kind.width == 0 else None
    width, kind = _CLASSES.get(dtype, (1, None))
    return kind if storage.count * width == size else None


def _is_whole(tensor: TensorRef, count: int) -> bool:
    """Whether the tensor is all of its storage, in order."""
    return tensor.offset == 0 and _elements(tensor.shape) == count and _is_contiguous(tensor)


def _elements(shape: tuple[int, ...]) -> int:
    try:
        return elements_of(shape)
    except MalformedError:
        return -1


def _is_contiguous(tensor: TensorRef) -> bool:
    expected = 1
    for length, stride in zip(tensor.shape[::-1], tensor.stride[::-1], strict=False):
        if length > 1 and stride != expected:
            return False
        expected *= length
    return len(tensor.shape) == len(tensor.stride)


def _with_unique_names(tensors: list[Tensor]) -> Iterator[Tensor]:
    """Paths can be equal, since keys may hold dots; then the places in the archive tell tensors apart."""
    counts: dict[str, int] = {}
    for tensor in tensors:
        counts[tensor.name] = counts.get(tensor.name, 0) + 1
    for row, tensor in enumerate(tensors):
        name = tensor.name if counts[tensor.name] == 1 else f"{tensor.name}#{row}"
        yield Tensor(name, tensor.kind, tensor.dtype, tensor.shape, tensor.start, tensor.end)
