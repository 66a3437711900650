"""Making a snapshot of one stream of bytes, such as the output of a program, as a file at the snapshot's top."""

from __future__ import annotations

import os
import stat
from array import array
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

from ohdiff import __version__, clock
from ohdiff.buffers import BufferPool
from ohdiff.chunking.engine import Engine, cut_and_hash_stream
from ohdiff.errors import IntegrityError, NoSnapshotError, OhdiffError, StorageError, UsageError
from ohdiff.repository.chunk_reader import ChunkReader
from ohdiff.repository.chunk_writer import ChunkSink
from ohdiff.repository.index import ChunkIndex
from ohdiff.repository.repository import Repository
from ohdiff.repository.snapshots import StoredSnapshot, save_snapshot
from ohdiff_format.snapshot import Snapshot, Statistics
from ohdiff_format.tree import Content, encode_listing

from .bases import FileBases
from .file_reading import BATCH_SIZE_BYTES, Piece
from .made_entries import made_entry
from .observer import Observer, Progress
from .owner_names import owner_names
from .snapshot import SnapshotOptions, SnapshotResult
from .storing import TREE_CACHE_SIZE_BYTES, open_sink
from .tree_reader import Entry, TreeReader
from .tree_writer import ContentBuilder

if TYPE_CHECKING:
    from typing_extensions import Buffer


_BUFFERS_KEPT: Final = 2


class ByteStream(Protocol):
    """What is read: a binary file, buffered or not."""

    def readinto(self, buffer: Buffer, /) -> int | None:
        """Fill a part of the buffer; 0 or None at the end."""


def make_stream_snapshot(
    repository: Repository,
    index: ChunkIndex,
    engine: Engine,
    name: bytes,
    stream: ByteStream,
    options: SnapshotOptions,
    observer: Observer,
    *,
    confirm: Callable[[], None] = lambda: None,
) -> SnapshotResult:
    """Snapshot what `stream` gives as the file `/name`.

    Parameters
    ----------
    confirm : called at the end of the stream; what it raises prevents the snapshot.
    """
    check_name(name)
    started_ns, begun_ns = clock.now_ns(), clock.monotonic_ns()
    tree = TreeReader(ChunkReader(repository, index, TREE_CACHE_SIZE_BYTES))
    errors: list[OhdiffError] = []
    earlier = _earlier(tree, options.parent, name, errors)
    with open_sink(repository, index, engine, tree, options.sink) as (sink, bases):
        finder = None if bases is None or earlier is None else bases.of_file(earlier.content)
        try:
            content, size = _store_stream(engine, stream, sink, finder, observer, name)
            confirm()
            root = _store_root(name, size, content, options, sink)
            sink.finish()
        except BaseException:
            sink.abort()
            raise
    errors += bases.errors.values() if bases is not None else ()
    for error in errors:
        observer.error(error)
    snapshot = _describe(name, size, root, options, sink, started_ns, clock.monotonic_ns() - begun_ns)
    is_unchanged = earlier is not None and earlier.content == content
    if options.is_dry_run or (options.skip_if_unchanged and is_unchanged):
        return SnapshotResult(None, snapshot, errors)
    return SnapshotResult(StoredSnapshot(save_snapshot(repository, snapshot), snapshot), snapshot, errors)


def check_name(name: bytes) -> None:
    """Raise UsageError unless `name` can be the name of a file."""
    if not name or b"/" in name or b"\0" in name or name in (b".", b".."):
        raise UsageError(f"{os.fsdecode(name)!r} is not a file name", hint="give a name without slashes")


def _store_stream(
    engine: Engine,
    stream: ByteStream,
    sink: ChunkSink,
    finder: FileBases | None,
    observer: Observer,
    name: bytes,
) -> tuple[Content, int]:
    progress = Progress(engine=f"{engine.name}/{engine.kernel}", current=[b"/" + name])
    builder = ContentBuilder(sink)
    for piece in _cut_pieces(engine, stream):
        sink.add_chunks(piece.buffer, piece.cuts, piece.ids, 0, len(piece.cuts), finder)
        sink.end_buffer(piece.buffer)
        if finder is not None:
            finder.origin += piece.cuts[-1]
        builder.add(piece.ids, piece.sizes)
        progress.bytes_done += piece.cuts[-1]
        observer.progress(progress)
    progress.files_done = 1
    observer.progress(progress)
    return builder.finish(), progress.bytes_done


def _cut_pieces(engine: Engine, stream: ByteStream) -> Iterator[Piece]:
    """Buffers with the cuts in each; what follows the last cut begins the next buffer."""
    size = max(BATCH_SIZE_BYTES, 2 * engine.rule.max_size)
    pool = BufferPool(size, _BUFFERS_KEPT)
    carry = b""
    is_last = False
    while not is_last:
        buffer = pool.take(size)
        with memoryview(buffer.data) as view:
            view[: len(carry)] = carry
            filled = len(carry) + _fill(stream, view[len(carry) :])
            is_last = filled < len(view)
            with view[:filled] as data:
                cut_bytes, ids = cut_and_hash_stream(engine, data, is_last)
                cuts = array("Q", cut_bytes).tolist()
                carry = bytes(data[cuts[-1] if cuts else 0 :])
        if cuts:
            yield Piece(buffer, cuts, ids)
        else:
            buffer.release()


def _fill(stream: ByteStream, view: memoryview) -> int:
    """Read until the view is full or the stream ends; returns how many bytes there were."""
    filled = 0
    with view:
        while filled < len(view):
            with view[filled:] as rest:
                count = stream.readinto(rest)
            if not count:
                break
            filled += count
    return filled


def _store_root(name: bytes, size: int, content: Content, options: SnapshotOptions, sink: ChunkSink) -> Content:
    listing = made_entry(name, stat.S_IFREG | 0o600, size, options.time_ns, content)
    data = encode_listing(listing)
    return Content(sink.add_metadata(data), (len(data),))


def _describe(
    name: bytes,
    size: int,
    root: Content,
    options: SnapshotOptions,
    sink: ChunkSink,
    started_ns: int,
    duration_ns: int,
) -> Snapshot:
    users, groups = owner_names([os.geteuid()], [os.getegid()])
    return Snapshot(
        time_ns=options.time_ns,
        started_ns=started_ns,
        root_ids=root.ids,
        root_sizes=list(root.sizes),
        root_depth=root.depth,
        paths=[b"/" + name],
        host=options.host,
        user=options.user,
        tags=list(options.tags),
        parent=b"" if options.parent is None else options.parent.snapshot_id,
        program=f"ohdiff {__version__}",
        users=users,
        groups=groups,
        statistics=Statistics(
            files=1,
            files_new=1,
            size=size,
            read_size=size,
            added_chunks=sink.counts.added_chunks,
            added_size=sink.counts.added_size,
            added_stored_size=sink.counts.stored_size,
            duration_ns=duration_ns,
        ),
    )


def _earlier(tree: TreeReader, parent: StoredSnapshot | None, name: bytes, errors: list[OhdiffError]) -> Entry | None:
    """The parent's file of this name; the snapshot can do without one that cannot be read."""
    try:
        return None if parent is None else tree.find(parent.root, b"/" + name)
    except NoSnapshotError:
        return None
    except (IntegrityError, StorageError) as error:
        errors.append(error)
        return None
