"""Snapshots of arrays in memory, and arrays out of snapshots: as safetensors files, whose pieces meet those of files.

Arrays are hashed where they lie, in this machine's memory or on a device. What the repository knows is not copied from
there; what is new is, and its id is proved by the CPU before it is stored. The arrays must be at rest meanwhile.
"""

from __future__ import annotations

import os
import pwd
import socket
import stat
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from blake3 import blake3

from ohdiff import __version__, clock
from ohdiff.buffers import BufferPool
from ohdiff.chunking.compressor import CompressorChoice, select_compressor
from ohdiff.chunking.containers.pieces import ContainerPiece
from ohdiff.chunking.cuda.engine import CudaEngine
from ohdiff.chunking.device_memory import DeviceMemory
from ohdiff.chunking.engine import Accelerator, Engine, EngineChoice, cut_and_hash_stream
from ohdiff.errors import DeviceError, NoSnapshotError, SourceError, UsageError
from ohdiff.repository.block_encoder import DEFAULT_LEVEL
from ohdiff.repository.chunk_reader import ChunkReader
from ohdiff.repository.chunk_writer import BLOCK_SIZE_BYTES, BaseFinder, ChunkSink
from ohdiff.repository.index import ChunkIndex
from ohdiff.repository.repository import Repository
from ohdiff.repository.snapshots import StoredSnapshot, find_snapshot, list_snapshots, save_snapshot
from ohdiff_format.limits import ID_SIZE
from ohdiff_format.snapshot import Snapshot, Statistics
from ohdiff_format.tree import Content, encode_listing

from .bases import FileBases, StoredBases
from .container_reading import ContainerLayout
from .device_pacing import manners_of_priority, paced_device
from .distant_numbers import DistantNumbers, plane_encoder
from .file_reading import BATCH_SIZE_BYTES, BUFFERS_KEPT
from .made_entries import made_entry
from .observer import Observer, Progress, Silent
from .opening import RepositoryPlace, choose_engine, opened
from .owner_names import owner_names
from .storing import TREE_CACHE_SIZE_BYTES, SinkOptions, open_sink
from .tensor_arrays import TensorMemory, tensor_memories
from .tensor_bases import FileTensors, NumbersPlan, TensorBases
from .tensor_image import PieceBuffer, TensorImage
from .tree_reader import TreeReader
from .tree_writer import ContentBuilder

if TYPE_CHECKING:
    from ohdiff.chunking.cuda.planes import PlaneEncoder

# Pieces of a tensor that are hashed by one call: 128 MiB of 4-byte elements.
_PIECES_HASHED: Final = 64


@dataclass(frozen=True, slots=True)
class TensorsResult:
    """What became of a snapshot of tensors.

    Attributes
    ----------
    stored : the snapshot; None on a dry run, or when nothing had changed and that was asked.
    snapshot : what it says.
    engine : which engine hashed, and why.
    copied_size : bytes that were copied down from a device.
    compression : where blocks were compressed, and why.
    """

    stored: StoredSnapshot | None
    snapshot: Snapshot
    engine: str
    copied_size: int
    compression: str


@dataclass(frozen=True, slots=True)
class TensorOptions:
    """How `snapshot_tensors` works, beside what and where; every one may be given to it by name.

    Attributes
    ----------
    metadata : text by name, kept in the file's header.
    parent : "latest" for the last snapshot of this path, None, or a snapshot or its id.
    engine, kernel : as on the command line; "auto" hashes where the arrays lie.
    accelerator : what is known about a device: its ceiling of memory, for one.
    level : zstd level, None for no compression.
    compress_on : as on the command line; "device" encodes pieces where they lie as well, "auto" does not.
    threads : that hash, and as many that compress.
    priority : "scavenge", "normal" or "interactive": how much it may be noticed on the device that hashes.
    """

    metadata: Mapping[str, str] | None = None
    tags: Sequence[str] = ()
    parent: StoredSnapshot | str | None = "latest"
    host: str | None = None
    user: str | None = None
    time_ns: int | None = None
    engine: str = "auto"
    kernel: str = "auto"
    accelerator: Accelerator | None = None
    level: int | None = DEFAULT_LEVEL
    compress_on: str = "auto"
    threads: int = 2
    priority: str = "normal"
    is_dry_run: bool = False
    skip_if_unchanged: bool = False
    observer: Observer | None = None


def snapshot_tensors(
    repo: RepositoryPlace,
    arrays: Mapping[str, Any],
    path: str = "/tensors.safetensors",
    *,
    password: str | bytes | None = None,
    key_file: str | os.PathLike[str] | None = None,
    cache_folder: str | os.PathLike[str] | None = None,
    **options: Any,
) -> TensorsResult:
    """Snapshot arrays as one safetensors file.

    Parameters
    ----------
    repo : an open repository, or its folder or URL.
    arrays : by name: anything with `__cuda_array_interface__`, DLPack, `__array_interface__` or the buffer protocol
        (torch, jax, cupy, numpy, memoryview). Who owns them leaves them as they are until this returns.
    path : of the file in the snapshot.
    options : see `TensorOptions`.

    Raises
    ------
    UsageError
        An array cannot be read, or is of a type that safetensors does not have.
    DeviceError
        A demanded engine cannot run, or a device failed with arrays on it.
    SourceError
        An array changed while it was read; nothing was committed.
    """
    try:
        given = TensorOptions(**options)
    except TypeError as error:
        raise UsageError(str(error).partition("__init__() ")[2] or str(error)) from error
    names = _names_of(path)
    manners = manners_of_priority(given.priority, given.accelerator)
    tensors = tensor_memories(arrays)
    with opened(repo, password, key_file, cache_folder) as (repository, index):
        compressing = _compressor_for(given)
        choice = _engine_for(repository, tensors, given, compressing.memory_left)
        run = _TensorSnapshot(repository, index, choice, compressing, given, names)
        with paced_device(choice.engine, manners):
            compressing.follow(choice.engine)
            return run.make(TensorImage(tensors, given.metadata or {}, _fetch_for(tensors, choice.engine)))


class _TensorSnapshot:
    """One run: hashes ahead in the background, stores in order, commits."""

    def __init__(
        self,
        repository: Repository,
        index: ChunkIndex,
        choice: EngineChoice,
        compressing: CompressorChoice,
        options: TensorOptions,
        names: Sequence[bytes],
    ) -> None:
        self._repository = repository
        self._index = index
        self._choice = choice
        self._engine = choice.engine
        self._compressing = compressing
        self._planes: PlaneEncoder | None = None
        self._options = options
        self._path = b"/" + b"/".join(names)
        self._names = names
        self._observer = options.observer or Silent()
        self._time_ns = clock.now_ns() if options.time_ns is None else options.time_ns
        self._pool = BufferPool(max(BATCH_SIZE_BYTES, 2 * self._engine.rule.max_size), BUFFERS_KEPT)
        self._tree = TreeReader(ChunkReader(repository, index, TREE_CACHE_SIZE_BYTES))

    def make(self, image: TensorImage) -> TensorsResult:
        """Store the image, and commit."""
        started_ns, begun_ns = clock.now_ns(), clock.monotonic_ns()
        options, layout = self._options, image.layout()
        parent = self._parent()
        earlier = None if parent is None else self._content_in(parent)
        if options.compress_on == "device":
            self._planes = plane_encoder(self._compressing, self._engine)
        with ExitStack() as stack:
            how = SinkOptions(
                options.level,
                options.threads,
                options.threads,
                options.is_dry_run,
                compressor=self._compressing.compressor,
            )
            opening = open_sink(self._repository, self._index, self._engine, self._tree, how)
            sink, bases = stack.enter_context(opening)
            hashers = stack.enter_context(ThreadPoolExecutor(options.threads, thread_name_prefix="hasher"))
            try:
                content = self._store(image, layout, sink, hashers, bases, earlier)
                root = self._store_root(image.size, content, sink)
                sink.finish()
            except BaseException:
                sink.abort()
                raise
            for error in bases.errors.values() if bases else ():
                self._observer.error(error)
        snapshot = self._describe(image, root, sink, parent, earlier, started_ns, clock.monotonic_ns() - begun_ns)
        is_unchanged = earlier is not None and earlier == content
        stored = None
        if not options.is_dry_run and not (options.skip_if_unchanged and is_unchanged):
            stored = StoredSnapshot(save_snapshot(self._repository, snapshot), snapshot)
        copied_size = image.fetched_size + (0 if self._planes is None else self._planes.copied_bytes)
        return TensorsResult(stored, snapshot, self._choice.reason, copied_size, self._compressing.reason)

    def _store(
        self,
        image: TensorImage,
        layout: ContainerLayout,
        sink: ChunkSink,
        hashers: ThreadPoolExecutor,
        bases: StoredBases | None,
        earlier: Content | None,
    ) -> Content:
        tensors = None
        if bases is not None and self._options.level is not None:
            known = TensorBases(bases, self._repository.chunk_id_key, self._options.level)
            tensors = known.open(self._path, image.size, self._time_ns, layout, earlier)
        finder = None if bases is None or earlier is None else bases.of_file(earlier)
        builder = ContentBuilder(sink)
        progress = Progress(
            total_files=1,
            total_bytes=image.size,
            engine=f"{self._engine.name}/{self._engine.kernel}",
            current=[self._path],
        )
        for rows, ids in self._hashed(image, layout, hashers):
            pieces = [layout.pieces[row] for row in rows]
            if ids is None:
                self._store_range(image, pieces[0], sink, bases, finder, builder)
            else:
                self._store_pieces(image, rows, pieces, ids, sink, tensors)
                builder.add(ids, [piece.size for piece in pieces])
            progress.bytes_done = pieces[-1].end
            self._observer.progress(progress)
        progress.files_done = 1
        self._observer.progress(progress)
        return builder.finish()

    def _hashed(
        self, image: TensorImage, layout: ContainerLayout, hashers: ThreadPoolExecutor
    ) -> Iterator[tuple[range, bytes | None]]:
        """Pieces of one tensor with their ids, and ranges of other bytes without, in order of the file."""
        ahead: deque[tuple[range, Future[bytes] | None]] = deque()
        for rows in _runs(layout.pieces):
            pieces = [layout.pieces[row] for row in rows]
            is_range = pieces[0].kind is None
            ahead.append((rows, None if is_range else hashers.submit(self._hash, image, pieces)))
            if len(ahead) > self._options.threads:
                first, future = ahead.popleft()
                yield first, None if future is None else future.result()
        for first, future in ahead:
            yield first, None if future is None else future.result()

    def _hash(self, image: TensorImage, pieces: Sequence[ContainerPiece]) -> bytes:
        """The ids of adjoining pieces of one tensor, hashed where it lies."""
        start = pieces[0].start
        whole = ContainerPiece(start, pieces[-1].end, pieces[0].tensor_row, 0, pieces[0].kind)
        ends = [piece.end - start for piece in pieces]
        memory = image.memory_of(whole)
        if not isinstance(memory, DeviceMemory):
            return self._engine.hash_chunks(memory, array("Q", ends))
        if isinstance(self._engine, CudaEngine):
            return self._engine.hash_resident(memory, ends)
        return b"".join(self._hash_fetched(image, piece) for piece in pieces)

    def _hash_fetched(self, image: TensorImage, piece: ContainerPiece) -> bytes:
        """The id of a piece on a device that has to be copied down for it."""
        buffer = self._pool.take(piece.size)
        try:
            with memoryview(buffer.data)[: piece.size] as view:
                image.read_into(piece.start, view)
                return self._engine.hash_chunks(view, array("Q", [piece.size]))
        finally:
            buffer.release()

    def _store_pieces(
        self,
        image: TensorImage,
        rows: range,
        pieces: Sequence[ContainerPiece],
        ids: bytes,
        sink: ChunkSink,
        tensors: FileTensors | None,
    ) -> None:
        for number, (row, piece) in enumerate(zip(rows, pieces, strict=True)):
            chunk_id = ids[number * ID_SIZE : (number + 1) * ID_SIZE]
            buffer = PieceBuffer(self._pool, _Proof(image, piece, chunk_id, self._repository.chunk_id_key), piece.size)
            plan = None if tensors is None else tensors.plan(row)
            distant = None if plan is None else self._distant(image, piece, plan, chunk_id)
            is_new = sink.add_planned(buffer, 0, piece.size, chunk_id, plan, distant)
            if tensors is not None:
                tensors.note(row, chunk_id, is_new=is_new)
            sink.end_buffer(buffer)

    def _distant(
        self, image: TensorImage, piece: ContainerPiece, plan: NumbersPlan, chunk_id: bytes
    ) -> DistantNumbers | None:
        """How to encode a piece where it lies, if that is a device that compresses."""
        memory = image.memory_of(piece)
        if self._planes is None or not isinstance(memory, DeviceMemory):
            return None
        return DistantNumbers(self._planes, plan, memory, chunk_id, self._repository.chunk_id_key)

    def _store_range(
        self,
        image: TensorImage,
        piece: ContainerPiece,
        sink: ChunkSink,
        bases: StoredBases | None,
        earlier: FileBases | None,
        builder: ContentBuilder,
    ) -> None:
        """Headers, small tensors and those without numbers: read, and cut by content."""
        position, carry, size = piece.start, b"", max(BATCH_SIZE_BYTES, 2 * self._engine.rule.max_size)
        while position < piece.end:
            buffer = self._pool.take(size)
            with memoryview(buffer.data) as view:
                view[: len(carry)] = carry
                count = min(size - len(carry), piece.end - position)
                filled = len(carry) + count
                with view[len(carry) : filled] as fresh:
                    image.read_into(position, fresh)
                position += count
                with view[:filled] as data:
                    cut_bytes, ids = cut_and_hash_stream(self._engine, data, position == piece.end)
                    cuts = array("Q", cut_bytes).tolist()
                    finder: BaseFinder | None = earlier
                    if earlier is not None:
                        earlier.origin = position - filled
                    elif bases is not None:
                        finder = bases.of_buffer(buffer)
                    sink.add_chunks(buffer, cuts, ids, 0, len(cuts), finder)
                    carry = bytes(data[cuts[-1] if cuts else 0 :])
            sink.end_buffer(buffer)
            builder.add(ids, [end - start for start, end in zip([0, *cuts[:-1]], cuts, strict=True)])

    def _parent(self) -> StoredSnapshot | None:
        parent = self._options.parent
        if isinstance(parent, StoredSnapshot) or parent is None:
            return parent
        if parent != "latest":
            return find_snapshot(self._repository, parent)
        stored = list_snapshots(self._repository)
        return next((each for each in reversed(stored) if each.snapshot.paths == [self._path]), None)

    def _content_in(self, parent: StoredSnapshot) -> Content | None:
        try:
            entry = self._tree.find(parent.root, self._path)
        except NoSnapshotError:
            return None
        return entry.content if entry is not None and entry.is_file else None

    def _store_root(self, size: int, content: Content, sink: ChunkSink) -> Content:
        """The file, and the folders that lead to it."""
        time_ns = self._time_ns
        mode = stat.S_IFREG | 0o600
        for name in reversed(self._names):
            data = encode_listing(made_entry(name, mode, size, time_ns, content))
            content = Content(sink.add_metadata(data), (len(data),))
            mode, size = stat.S_IFDIR | 0o700, 0
        return content

    def _describe(
        self,
        image: TensorImage,
        root: Content,
        sink: ChunkSink,
        parent: StoredSnapshot | None,
        earlier: Content | None,
        started_ns: int,
        duration_ns: int,
    ) -> Snapshot:
        users, groups = owner_names([os.geteuid()], [os.getegid()])
        options, counts = self._options, sink.counts
        return Snapshot(
            time_ns=self._time_ns,
            started_ns=started_ns,
            root_ids=root.ids,
            root_sizes=list(root.sizes),
            root_depth=root.depth,
            paths=[self._path],
            host=options.host or socket.gethostname(),
            user=options.user or _user_name(),
            tags=list(options.tags),
            parent=b"" if parent is None else parent.snapshot_id,
            program=f"ohdiff {__version__}",
            users=users,
            groups=groups,
            statistics=Statistics(
                files=1,
                files_new=1 if earlier is None else 0,
                files_changed=0 if earlier is None else 1,
                size=image.size,
                read_size=image.size,
                added_chunks=counts.added_chunks,
                added_size=counts.added_size,
                added_stored_size=counts.stored_size,
                duration_ns=duration_ns,
            ),
        )


class _Proof:
    """Copies a new piece from where it lies, and proves that it is what was hashed there."""

    def __init__(self, image: TensorImage, piece: ContainerPiece, chunk_id: bytes, id_key: bytes) -> None:
        self._image = image
        self._piece = piece
        self._chunk_id = chunk_id
        self._id_key = id_key

    def __call__(self, target: memoryview) -> None:
        self._image.read_into(self._piece.start, target)
        if blake3(target, key=self._id_key).digest() != self._chunk_id:
            raise SourceError(
                "a tensor changed while it was read, or a device hashed it wrongly; nothing was committed",
                hint="snapshot again when it is at rest; with engine='cpu' to rule the device out",
            )


def _compressor_for(options: TensorOptions) -> CompressorChoice:
    if options.level is None:
        return CompressorChoice(None, "no compression", None)
    accelerator = options.accelerator or Accelerator(threads=options.threads)
    is_default_level = options.level == DEFAULT_LEVEL
    return select_compressor(options.compress_on, accelerator, BLOCK_SIZE_BYTES, is_default_level=is_default_level)


def _engine_for(
    repository: Repository, tensors: Sequence[TensorMemory], options: TensorOptions, memory_max: int | None
) -> EngineChoice:
    given = options.accelerator or Accelerator(threads=options.threads)
    is_resident = any(tensor.is_on_device for tensor in tensors)
    accelerator = Accelerator(given.profile, given.threads, memory_max or given.memory_max_bytes, is_resident)
    keys = (repository.chunker_key, repository.chunk_id_key)
    return choose_engine(repository.config.chunker, *keys, options.engine, options.kernel, accelerator)


def _fetch_for(tensors: Sequence[TensorMemory], engine: Engine) -> Any:
    """What copies from a device; None if nothing lies on one. Waits until the device has computed what it was given."""
    if not any(tensor.is_on_device for tensor in tensors):
        return None
    from ohdiff.chunking.cuda.device import CudaDevice, DeviceFaultError

    device = engine.device if isinstance(engine, CudaEngine) else CudaDevice()
    try:
        with device.bound():
            device.synchronize()
    except DeviceFaultError as error:
        raise DeviceError(f"what is on the device cannot be read: {error}", item="cuda") from error
    return device.fetch_memory


def _runs(pieces: Sequence[ContainerPiece]) -> Iterator[range]:
    """Rows of adjoining pieces of one tensor, so many as are hashed together; a range comes alone."""
    first = 0
    for row, piece in enumerate(pieces):
        head = pieces[first]
        if row > first and (piece.tensor_row != head.tensor_row or head.kind is None or row - first >= _PIECES_HASHED):
            yield range(first, row)
            first = row
    if pieces:
        yield range(first, len(pieces))


def _names_of(path: str) -> list[bytes]:
    names = [name for name in os.fsencode(path).split(b"/") if name]
    if not names or any(name in (b".", b"..") or b"\0" in name for name in names):
        raise UsageError(f"{path!r} is not the path of a file", hint="give one such as run/model.safetensors")
    return names


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
