"""Snapshot objects: the root tree and what is known of its making; one sealed message (SPEC section 9).

Writing one is the only commit point of the repository.
"""

from __future__ import annotations

from typing import Final

import msgspec

from .envelope import pack_plain, unpack_plain
from .errors import FormatError
from .limits import CHUNK_SIZE_BYTES_MAX, CONTENT_DEPTH_MAX, ID_SIZE, Length, Signed64

NUMBER_BODY: Final = 0


class Statistics(msgspec.Struct, frozen=True):
    """Counts of the run that made a snapshot; sizes in bytes."""

    files: int = 0
    directories: int = 0
    others: int = 0
    files_new: int = 0
    files_changed: int = 0
    files_unchanged: int = 0
    size: int = 0
    read_size: int = 0
    added_chunks: int = 0
    added_size: int = 0
    added_stored_size: int = 0
    errors: int = 0
    duration_ns: int = 0


class Snapshot(msgspec.Struct, frozen=True):
    """One state of some paths.

    `time_ns` is the time that it stands for, `started_ns` when its making began.

    `root_ids`, `root_sizes` and `root_depth` are the content of the root directory, whose entries lead to `paths`
    (absolute, as bytes). `users` and `groups` name the owner ids that occur.
    """

    time_ns: Signed64
    root_ids: bytes
    root_sizes: list[Length]
    root_depth: int
    paths: list[bytes]
    host: str
    user: str
    tags: list[str] = []
    parent: bytes = b""
    program: str = ""
    users: dict[int, str] = {}
    groups: dict[int, str] = {}
    excludes: list[str] = []
    statistics: Statistics = Statistics()
    started_ns: Signed64 = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Snapshot).decode


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The plain bytes of a snapshot object, to be sealed under NUMBER_BODY."""
    return pack_plain(_encode(snapshot))


def decode_snapshot(plain: bytes) -> Snapshot:
    """Parse and check a snapshot object."""
    try:
        snapshot = _decode(unpack_plain(plain))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"not a snapshot: {error}") from error
    counted = len(snapshot.root_ids) == ID_SIZE * len(snapshot.root_sizes)
    if snapshot.root_depth == 0 and max(snapshot.root_sizes, default=0) > CHUNK_SIZE_BYTES_MAX:
        raise FormatError("a chunk is larger than its limit")
    if not counted or not 0 <= snapshot.root_depth <= CONTENT_DEPTH_MAX or len(snapshot.parent) not in (0, ID_SIZE):
        raise FormatError("the root or parent of a snapshot is not valid")
    return snapshot
