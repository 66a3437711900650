"""Trees: the listing of a directory as columns, cut into leaves by name (SPEC section 8).

A leaf is one chunk. Columns, not rows: neighbouring entries share owner, device and nearly their times, so columns
of differences compress to a few bytes an entry, decode at C speed, and compare with a stored leaf as whole lists.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from operator import sub
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec
import xxhash
from msgspec import Meta

from .errors import FormatError
from .limits import CHUNK_SIZE_BYTES_MAX, CONTENT_DEPTH_MAX, ID_SIZE, LEAF_ROWS_MAX, Length, Unsigned

_Value = TypeVar("_Value")
Column = int | list[int]
# Ranges and counts are checked while decoding, at C speed, so that no later user of a number has to.
_Rows = Meta(max_length=LEAF_ROWS_MAX)
_Mode = Annotated[int, Meta(ge=0, le=0xFFFF)]
_Owner = Annotated[int, Meta(ge=0, le=2**32 - 1)]
_Depth = Annotated[int, Meta(ge=0, le=CONTENT_DEPTH_MAX)]
_Modes = _Mode | Annotated[list[_Mode], _Rows]
_Owners = _Owner | Annotated[list[_Owner], _Rows]
_Lengths = Length | Annotated[list[Length], _Rows]
_Numbers = Unsigned | Annotated[list[Unsigned], _Rows]
_Depths = _Depth | Annotated[list[_Depth], _Rows]
_Differences = Annotated[list[int], _Rows]
_Wrapped = int | Annotated[list[int], _Rows]

LEAF_ENTRIES_MIN: Final = 128
LEAF_ENTRIES_MAX: Final = 2048
_LEAF_CUT_MASK: Final = 0x1FF
TIME_UNKNOWN: Final = -(2**63)
MARK_CHANGED_WHILE_READ: Final = 1
MARK_INCOMPLETE: Final = 2
_U64: Final = 2**64 - 1


class Content(NamedTuple):
    """What an entry holds: chunk ids in order, and a length for each.

    `depth` 0: the ids are chunks of a file's data or leaves of a directory, with their lengths. `depth` n: they are
    chunks that each hold an encoded Content of depth n - 1, with the sum of the lengths in it, so that a huge list
    is itself cut into chunks and any offset is found without reading all of it.
    """

    ids: bytes = b""
    sizes: tuple[int, ...] = ()
    depth: int = 0

    def chunk_ids(self) -> list[bytes]:
        """The ids one by one."""
        return [self.ids[i : i + ID_SIZE] for i in range(0, len(self.ids), ID_SIZE)]

    def pairs(self) -> list[tuple[bytes, int]]:
        """The (id, length) of each."""
        return list(zip(self.chunk_ids(), self.sizes, strict=True))


EMPTY_CONTENT: Final = Content()


@dataclass(slots=True)
class Listing:
    """Entries of one directory in strictly ascending byte order of name; every list has one item an entry.

    Times are nanoseconds since 1970 and may be negative. Sparse fields are keyed by row: `targets` of symbolic
    links, `xattrs` as (name, value) sorted by name, `extents` as flat (start, end) pairs of a file with holes
    (data lies only inside them; the content is the data alone).
    """

    names: list[bytes] = field(default_factory=list)
    modes: list[int] = field(default_factory=list)
    uids: list[int] = field(default_factory=list)
    gids: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    mtimes: list[int] = field(default_factory=list)
    ctimes: list[int] = field(default_factory=list)
    btimes: list[int] = field(default_factory=list)
    inodes: list[int] = field(default_factory=list)
    devices: list[int] = field(default_factory=list)
    link_counts: list[int] = field(default_factory=list)
    rdevs: list[int] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    contents: list[Content] = field(default_factory=list)
    targets: dict[int, bytes] = field(default_factory=dict)
    xattrs: dict[int, list[tuple[bytes, bytes]]] = field(default_factory=dict)
    extents: dict[int, list[int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    def columns(self) -> tuple[list[Any], ...]:
        """Every list, in the order of the fields."""
        return (
            self.names,
            self.modes,
            self.uids,
            self.gids,
            self.sizes,
            self.mtimes,
            self.ctimes,
            self.btimes,
            self.inodes,
            self.devices,
            self.link_counts,
            self.rdevs,
            self.flags,
            self.marks,
            self.contents,
        )

    def sparse(self) -> tuple[dict[int, Any], ...]:
        """Every sparse field, in the order of the fields."""
        return (self.targets, self.xattrs, self.extents)


class _Leaf(msgspec.Struct, frozen=True, array_like=True, gc=False):
    names: Annotated[list[bytes], _Rows]
    modes: _Modes
    uids: _Owners
    gids: _Owners
    sizes: _Lengths
    mtimes: int | _Differences
    ctimes: _Differences
    btimes: _Wrapped
    inodes: _Differences
    devices: _Numbers
    link_counts: _Numbers
    rdevs: _Numbers
    flags: _Numbers
    marks: _Numbers
    content_depths: _Depths
    content_counts: _Lengths
    content_ids: bytes
    content_sizes: list[Length]
    targets: Annotated[dict[int, bytes], _Rows]
    xattrs: Annotated[dict[int, list[tuple[bytes, bytes]]], _Rows]
    extents: Annotated[dict[int, list[Length]], _Rows]


class _LeafContents(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A leaf of which only modes and contents are looked at."""

    names: msgspec.Raw
    modes: _Modes
    uids: msgspec.Raw
    gids: msgspec.Raw
    sizes: msgspec.Raw
    mtimes: msgspec.Raw
    ctimes: msgspec.Raw
    btimes: msgspec.Raw
    inodes: msgspec.Raw
    devices: msgspec.Raw
    link_counts: msgspec.Raw
    rdevs: msgspec.Raw
    flags: msgspec.Raw
    marks: msgspec.Raw
    content_depths: _Depths
    content_counts: _Lengths
    content_ids: bytes
    content_sizes: list[Length]


class _ContentList(msgspec.Struct, frozen=True, array_like=True, gc=False):
    depth: _Depth
    ids: bytes
    sizes: list[Length]


_encode = msgspec.msgpack.Encoder().encode
_decode_leaf = msgspec.msgpack.Decoder(_Leaf).decode
_decode_leaf_contents = msgspec.msgpack.Decoder(_LeafContents).decode
_decode_content = msgspec.msgpack.Decoder(_ContentList).decode


def is_leaf_end(name: bytes) -> bool:
    """Whether a leaf may end after `name`: one name in 512, whatever its neighbours are."""
    return xxhash.xxh3_64_intdigest(name) & _LEAF_CUT_MASK == 0


def leaf_bounds(names: Sequence[bytes]) -> list[int]:
    """Exclusive end rows of the leaves that a directory's sorted names are cut into.

    Leaves agree again after the first end that both cuttings share, so a new file in a folder of a million rewrites
    kilobytes: of 1,500 names inserted into 60,000, 1,393 changed one leaf, 104 two, 3 three. Readers do not depend
    on this rule.
    """
    count = len(names)
    if count <= LEAF_ENTRIES_MIN:
        return [count] if count else []
    ends = []
    start = 0
    for row in range(count):
        size = row + 1 - start
        if size >= LEAF_ENTRIES_MIN and (size >= LEAF_ENTRIES_MAX or is_leaf_end(names[row])):
            ends.append(row + 1)
            start = row + 1
    if start < count:
        ends.append(count)
    return ends


def encode_listing(listing: Listing) -> bytes:
    """The bytes of a leaf."""
    contents = listing.contents
    return _encode(
        _Leaf(
            listing.names,
            _constant_or_list(listing.modes),
            _constant_or_list(listing.uids),
            _constant_or_list(listing.gids),
            _constant_or_list(listing.sizes),
            _modification_times(listing.mtimes, listing.ctimes),
            _differences(listing.ctimes),
            _constant_or_list(_wrap(map(sub, listing.ctimes, listing.btimes))),
            _differences(listing.inodes),
            _constant_or_list(listing.devices),
            _constant_or_list(listing.link_counts),
            _constant_or_list(listing.rdevs),
            _constant_or_list(listing.flags),
            _constant_or_list(listing.marks),
            _constant_or_list([content.depth for content in contents]),
            _constant_or_list([len(content.sizes) for content in contents]),
            b"".join([content.ids for content in contents]),
            [size for content in contents for size in content.sizes],
            listing.targets,
            listing.xattrs,
            listing.extents,
        )
    )


def decode_listing(data: bytes) -> Listing:
    """Parse and check a leaf; names are valid, unique and sorted afterwards."""
    leaf = _parsed(_decode_leaf, data, "a tree leaf")
    check_names(leaf.names)
    count = len(leaf.names)
    ctimes = _sums(leaf.ctimes, count)
    listing = Listing(
        leaf.names,
        _expand(leaf.modes, count),
        _expand(leaf.uids, count),
        _expand(leaf.gids, count),
        _expand(leaf.sizes, count),
        _expand_modification_times(leaf.mtimes, ctimes, count),
        ctimes,
        _wrap(map(sub, ctimes, _expand(leaf.btimes, count))),
        [inode & _U64 for inode in _sums(leaf.inodes, count)],
        _expand(leaf.devices, count),
        _expand(leaf.link_counts, count),
        _expand(leaf.rdevs, count),
        _expand(leaf.flags, count),
        _expand(leaf.marks, count),
        _split_contents(leaf, count),
        leaf.targets,
        leaf.xattrs,
        leaf.extents,
    )
    _check_rows(listing)
    return listing


@dataclass(frozen=True, slots=True)
class LeafContents:
    """What the entries of a leaf hold, without the entries.

    Attributes
    ----------
    file_ids : the ids of all chunks of files whose contents have depth 0, back to back.
    deep_files, directories : contents of the other files, and of directories.
    """

    file_ids: bytes
    deep_files: list[Content]
    directories: list[Content]


def decode_leaf_contents(data: bytes) -> LeafContents:
    """Parse the contents of a leaf, a sixth of the work of `decode_listing`; nothing else of it is checked."""
    leaf = _parsed(_decode_leaf_contents, data, "a tree leaf")
    modes, counts = leaf.modes, leaf.content_counts
    has_directory = any(map(stat.S_ISDIR, set(modes) if isinstance(modes, list) else (modes,)))
    if leaf.content_depths == 0 and not has_directory:
        _check_content(0, leaf.content_ids, leaf.content_sizes)
        return LeafContents(leaf.content_ids, [], [])
    # Rows are not counted where none has chunks: those are of no interest.
    count = len(counts) if isinstance(counts, list) else len(leaf.content_sizes) // counts if counts else 0
    contents = _split_contents(leaf, count)
    pairs = list(zip(_expand(modes, count), contents, strict=True)) if count else []
    return LeafContents(
        b"".join([content.ids for mode, content in pairs if content.depth == 0 and not stat.S_ISDIR(mode)]),
        [content for mode, content in pairs if content.depth and not stat.S_ISDIR(mode)],
        [content for mode, content in pairs if stat.S_ISDIR(mode)],
    )


def encode_content(content: Content) -> bytes:
    """The bytes of one chunk of a content list."""
    return _encode(_ContentList(content.depth, content.ids, list(content.sizes)))


def decode_content(data: bytes) -> Content:
    """Parse and check one chunk of a content list."""
    found = _parsed(_decode_content, data, "a content list")
    _check_content(found.depth, found.ids, found.sizes)
    return Content(found.ids, tuple(found.sizes), found.depth)


def check_names(names: list[bytes]) -> None:
    """Raise unless every name is a plain file name and they ascend strictly."""
    previous = b""
    for name in names:
        if name <= previous:
            raise FormatError("names do not ascend")
        if b"/" in name or b"\0" in name or name in (b".", b".."):
            raise FormatError("an entry's name is not a file name")
        previous = name


def _parsed(decode: Callable[[bytes], _Value], data: bytes, what: str) -> _Value:
    if len(data) > CHUNK_SIZE_BYTES_MAX:
        raise FormatError("a chunk is larger than its limit")
    try:
        return decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"not {what}: {error}") from error


def _check_content(depth: int, ids: bytes, sizes: Sequence[int]) -> None:
    if len(ids) != len(sizes) * ID_SIZE:
        raise FormatError("a content list does not have one id and one length for each chunk")
    if depth == 0 and max(sizes, default=0) > CHUNK_SIZE_BYTES_MAX:
        raise FormatError("a chunk is larger than its limit")


def _split_contents(leaf: _Leaf | _LeafContents, count: int) -> list[Content]:
    depths = _expand(leaf.content_depths, count)
    counts = _expand(leaf.content_counts, count)
    if sum(counts) != len(leaf.content_sizes):
        raise FormatError("content counts do not add up")
    ids, sizes = leaf.content_ids, leaf.content_sizes
    deepest = max(depths, default=0)
    _check_content(deepest, ids, sizes)
    contents = []
    start = 0
    for chunk_count, depth in zip(counts, depths, strict=True):
        if chunk_count == 0:
            contents.append(EMPTY_CONTENT)
            continue
        end = start + chunk_count
        content = Content(ids[start * ID_SIZE : end * ID_SIZE], tuple(sizes[start:end]), depth)
        if depth < deepest:
            _check_content(depth, content.ids, content.sizes)
        contents.append(content)
        start = end
    return contents


def _check_rows(listing: Listing) -> None:
    count = len(listing)
    for sparse in (listing.targets, listing.xattrs, listing.extents):
        if sparse and (min(sparse) < 0 or max(sparse) >= count):
            raise FormatError("a sparse field names a row that is not there")
    if any(not target or b"\0" in target for target in listing.targets.values()):
        raise FormatError("the target of a symbolic link is not a path")
    for xattrs in listing.xattrs.values():
        _check_xattrs(xattrs)
    for row, extents in listing.extents.items():
        _check_extents(extents, listing.sizes[row])


def _check_xattrs(xattrs: list[tuple[bytes, bytes]]) -> None:
    previous = b""
    for name, _ in xattrs:
        if name <= previous or b"\0" in name:
            raise FormatError("the names of extended attributes do not ascend, or one is not a name")
        previous = name


def _check_extents(extents: list[int], size: int) -> None:
    ascending = all(a < b for a, b in pairwise(extents))
    if len(extents) % 2 or not ascending or (extents and extents[-1] > size):
        raise FormatError("the data extents of a file are not valid")


def _constant_or_list(values: list[int]) -> Column:
    if values and values.count(values[0]) == len(values):
        return values[0]
    return values


def _differences(values: list[int]) -> list[int]:
    if len(values) < 2:
        return values
    return [values[0], *_wrap(map(sub, values[1:], values))]


def _modification_times(mtimes: list[int], ctimes: list[int]) -> Column:
    """Differences; or where each entry was last changed by a write, as most are, the one distance to its ctime."""
    distance = _constant_or_list(_wrap(map(sub, ctimes, mtimes)))
    return distance if isinstance(distance, int) else _differences(mtimes)


def _expand_modification_times(column: Column, ctimes: list[int], count: int) -> list[int]:
    if isinstance(column, int):
        return _wrap([ctime - column for ctime in ctimes])
    return _sums(column, count)


def _sums(column: list[int], count: int) -> list[int]:
    _check_length(column, count)
    sums = list(accumulate(column))
    return sums if not sums or (min(sums) >= -(2**63) and max(sums) < 2**63) else _wrap(sums)


def _expand(column: Column, count: int) -> list[int]:
    if isinstance(column, int):
        return [column] * count
    _check_length(column, count)
    return column


def _check_length(column: list[int], count: int) -> None:
    if len(column) != count:
        raise FormatError("a column is not as long as the names")


def _wrap(values: object) -> list[int]:
    """Numbers modulo 2^64, as signed 64-bit."""
    wrapped: list[int] = list(values)  # type: ignore[call-overload]
    if wrapped and (min(wrapped) < -(2**63) or max(wrapped) >= 2**63):
        return [((value + 2**63) & _U64) - 2**63 for value in wrapped]
    return wrapped
