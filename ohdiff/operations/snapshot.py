"""Making a snapshot of paths: walk, compare with the parent, read what changed, store what is new, commit.

One thread walks and keeps the books (snapshot_walk, snapshot_files, tree_writer); readers fetch, cut and hash files
in the background (file_reading); encoders compress, and a packer writes (repository/chunk_writer). Every queue
between them is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ohdiff import __version__, clock
from ohdiff.chunking.engine import Engine
from ohdiff.errors import NoSnapshotError, OhdiffError
from ohdiff.repository.block_encoder import DEFAULT_LEVEL
from ohdiff.repository.chunk_reader import ChunkReader
from ohdiff.repository.chunk_writer import ChunkSink
from ohdiff.repository.encoding import BlockCompressor
from ohdiff.repository.index import ChunkIndex
from ohdiff.repository.repository import Repository
from ohdiff.repository.snapshots import StoredSnapshot, save_snapshot
from ohdiff.scheduling.pace import UNPACED, Pace
from ohdiff_format.snapshot import Snapshot, Statistics
from ohdiff_format.tree import Content

from .observer import Observer
from .owner_names import owner_names
from .snapshot_files import FileTaker
from .snapshot_walk import SnapshotWalk
from .source_paths import path_tree
from .source_rules import DirectoryRules, KeepAll
from .storing import TREE_CACHE_SIZE_BYTES, SinkOptions, open_sink
from .tensor_bases import TensorBases
from .tree_reader import Entry, TreeReader
from .tree_writer import TreeWriter

if TYPE_CHECKING:
    from ohdiff.chunking.cuda.direct import DirectReader

# Kernels before 6.13 stamp files with a clock that ticks every 1 to 10 ms.
_CLOCK_TICK_NS: Final = 20_000_000


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """How to make a snapshot.

    Attributes
    ----------
    parent : the earlier snapshot whose unchanged files are not read again, or None.
    is_forced : read every file, whatever the parent says.
    level : zstd level, None for no compression.
    readers, encoders : background threads.
    queue_depth : blocks in flight; each holds up to 16 MiB.
    excludes : the rules in words, to be kept in the snapshot.
    pace : says when a unit of work may run.
    compressor : compresses blocks of data instead of the CPU.
    direct : reads large files into the memory of the engine's device, past the CPU.
    """

    time_ns: int
    host: str
    user: str
    tags: tuple[str, ...] = ()
    parent: StoredSnapshot | None = None
    is_forced: bool = False
    is_dry_run: bool = False
    skip_if_unchanged: bool = False
    one_file_system: bool = False
    level: int | None = DEFAULT_LEVEL
    readers: int = 1
    encoders: int = 2
    queue_depth: int = 2
    rules: DirectoryRules = field(default_factory=KeepAll)
    excludes: tuple[str, ...] = ()
    pace: Pace = UNPACED
    compressor: BlockCompressor | None = None
    direct: DirectReader | None = None

    @property
    def settled_ns(self) -> int:
        """Files with a ctime before, which the parent has, are not read; 0 for all are."""
        return 0 if self.is_forced or self.parent is None else self.parent.snapshot.started_ns - _CLOCK_TICK_NS

    @property
    def sink(self) -> SinkOptions:
        """How the chunks are stored."""
        return SinkOptions(self.level, self.encoders, self.queue_depth, self.is_dry_run, self.pace, self.compressor)


@dataclass(frozen=True, slots=True)
class SnapshotResult:
    """What became of a snapshot: `stored` is None on a dry run, or when nothing had changed and that was asked."""

    stored: StoredSnapshot | None
    snapshot: Snapshot
    errors: list[OhdiffError]


def make_snapshot(
    repository: Repository,
    index: ChunkIndex,
    engine: Engine,
    paths: Sequence[bytes],
    options: SnapshotOptions,
    observer: Observer,
) -> SnapshotResult:
    """Snapshot `paths` (absolute, links resolved: see `resolve_path`).

    Unreadable entries are collected in the result and told to the observer; everything else is stored. When the user
    interrupts, what has been read so far is kept and indexed, so that the next run need not redo it; no snapshot
    refers to it.
    """
    started_ns, begun_ns = clock.now_ns(), clock.monotonic_ns()
    with ExitStack() as stack:
        tree = TreeReader(ChunkReader(repository, index, TREE_CACHE_SIZE_BYTES))
        sink, bases = stack.enter_context(open_sink(repository, index, engine, tree, options.sink))
        readers = stack.enter_context(ThreadPoolExecutor(options.readers, thread_name_prefix="reader"))
        writer = TreeWriter(sink)
        tensors = None
        if bases is not None and options.level is not None:
            tensors = TensorBases(bases, repository.chunk_id_key, options.level)
        files = FileTaker(engine, sink, writer, readers, observer, bases, tensors, options.pace, options.direct)
        parent = None if options.is_forced else options.parent
        walk = SnapshotWalk(
            index,
            tree,
            writer,
            files,
            observer,
            pace=options.pace,
            one_file_system=options.one_file_system,
            settled_ns=options.settled_ns,
            is_parent_whole=parent is not None and index.is_whole_for(parent.snapshot_id),
        )
        try:
            root = walk.run(path_tree(paths), options.rules, None if parent is None else parent.root)
            sink.finish()
            for error in bases.errors.values() if bases else ():
                files.collect(error)
        except KeyboardInterrupt:
            files.cancel()
            sink.interrupt()
            raise
        except BaseException:
            files.cancel()
            sink.abort()
            raise
    snapshot = _describe(root, paths, options, walk, files, sink, started_ns, clock.monotonic_ns() - begun_ns)
    result = _commit(repository, tree, snapshot, options, files.errors)
    if result.stored is not None:
        index.note_whole(result.stored.snapshot_id)
    return result


def _describe(
    root: Content,
    paths: Sequence[bytes],
    options: SnapshotOptions,
    walk: SnapshotWalk,
    files: FileTaker,
    sink: ChunkSink,
    started_ns: int,
    duration_ns: int,
) -> Snapshot:
    counts, added = files.counts, sink.counts
    statistics = Statistics(
        files=counts.new + counts.changed + counts.unchanged,
        directories=walk.directories,
        others=walk.others,
        files_new=counts.new,
        files_changed=counts.changed,
        files_unchanged=counts.unchanged,
        size=counts.size,
        read_size=counts.read_size,
        added_chunks=added.added_chunks,
        added_size=added.added_size,
        added_stored_size=added.stored_size,
        errors=len(files.errors),
        duration_ns=duration_ns,
    )
    users, groups = owner_names(*walk.owner_ids)
    return Snapshot(
        time_ns=options.time_ns,
        root_ids=root.ids,
        root_sizes=list(root.sizes),
        root_depth=root.depth,
        paths=list(paths),
        host=options.host,
        user=options.user,
        tags=list(options.tags),
        parent=b"" if options.parent is None else options.parent.snapshot_id,
        program=f"ohdiff {__version__}",
        users=users,
        groups=groups,
        excludes=list(options.excludes),
        statistics=statistics,
        started_ns=started_ns,
    )


def _commit(
    repository: Repository,
    tree: TreeReader,
    snapshot: Snapshot,
    options: SnapshotOptions,
    errors: list[OhdiffError],
) -> SnapshotResult:
    if options.is_dry_run or (options.skip_if_unchanged and _is_unchanged(tree, options.parent, snapshot)):
        return SnapshotResult(None, snapshot, errors)
    return SnapshotResult(StoredSnapshot(save_snapshot(repository, snapshot), snapshot), snapshot, errors)


def _is_unchanged(tree: TreeReader, parent: StoredSnapshot | None, snapshot: Snapshot) -> bool:
    """Whether everything at and below the given paths is as in the parent; the folders above are others' affair."""
    if parent is None or set(parent.snapshot.paths) != set(snapshot.paths):
        return False
    root = Content(snapshot.root_ids, tuple(snapshot.root_sizes), snapshot.root_depth)
    if root == parent.root:
        return True
    try:
        pairs = [(tree.find(parent.root, path), tree.find(root, path)) for path in snapshot.paths]
    except NoSnapshotError:
        return False
    return all(before is not None and after is not None and _same_entry(before, after) for before, after in pairs)


def _same_entry(before: Entry, after: Entry) -> bool:
    (old, i), (new, j) = (before.listing, before.row), (after.listing, after.row)
    return all(a[i] == b[j] for a, b in zip(old.columns(), new.columns(), strict=True)) and all(
        a.get(i) == b.get(j) for a, b in zip(old.sparse(), new.sparse(), strict=True)
    )
