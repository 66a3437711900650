"""Faults as a model: storages and disks that behave, until the step at which they do not.

`FaultyStorage` wraps any storage for tests of what stands above it: it counts storage steps and stops at one of them
(before it, after it, torn, or with bytes lost that were thought to be safe), runs full, fails reads, or flips bits.
`VolatileDisk` stands below local storage: it counts system calls, knows which names and bytes were synced, and builds
the folders that a loss of power may leave. A crash is a BaseException and the storage is dead after it, as a killed
process is: no handler of the code under test can tidy up.

    steps = storage_steps(run, start)
    for plan in crash_plans(steps):
        storage = FaultyStorage(start.copy(), Faults(crash=plan))
        with suppress(CrashError):
            run(storage)
        check(storage.inner)
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from ohdiff.errors import StorageError
from ohdiff.storage import Buffer, ObjectInfo, ObjectWriter, Storage
from ohdiff.storage.local_writer import LocalWriter
from ohdiff.storage.system_calls import SystemCalls
from ohdiff.storage.system_errors import storage_error


class CrashError(BaseException):
    """The process was killed, or the power went."""


class Crash(Enum):
    """What is left of the step at which the crash came."""

    BEFORE = auto()
    """Nothing of it."""
    AFTER = auto()
    """All of it, though nobody was told."""
    TORN = auto()
    """Half of its bytes, in a temporary that nobody holds; under its name nothing."""
    UNSYNCED = auto()
    """Its name over no bytes: a storage that broke its promise, as a disk that lies about its cache does."""
    HALF = auto()
    """Its name over the first half of its bytes: the same, or a storage that is not atomic."""


class Step(NamedTuple):
    """One change of the storage."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class CrashPlan:
    """Crash at a step, counted from 0."""

    step: int
    mode: Crash


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong.

    Parameters
    ----------
    crash : when to stop, or None.
    capacity_bytes : bytes that fit from the start on; the write that goes beyond fails as a full disk does.
    failing_reads, failing_lists : reads and listings, counted from 0, that fail with a StorageError.
    unreadable : names whose every read fails.
    flipped_reads : read, counted from 0 -> the bit that comes back flipped (modulo the bits that were read).
    """

    crash: CrashPlan | None = None
    capacity_bytes: int | None = None
    failing_reads: frozenset[int] = frozenset()
    failing_lists: frozenset[int] = frozenset()
    unreadable: frozenset[str] = frozenset()
    flipped_reads: Mapping[int, int] = field(default_factory=dict)


def storage_steps(run: Callable[[Storage], object], storage: Storage) -> list[Step]:
    """The steps that `run` takes on `storage`, which keeps what `run` did."""
    faulty = FaultyStorage(storage)
    run(faulty)
    return faulty.steps


def crash_plans(steps: Iterable[Step], modes: Iterable[Crash] = tuple(Crash)) -> Iterator[CrashPlan]:
    """Every way to crash at every step; ways that leave the same as another are given once."""
    wanted = frozenset(modes)
    for number, step in enumerate(steps):
        possible = {
            "append": {Crash.BEFORE, Crash.TORN},
            "delete": {Crash.BEFORE, Crash.AFTER},
        }.get(step.kind, set(Crash))
        yield from (CrashPlan(number, mode) for mode in Crash if mode in possible & wanted)


class FaultyStorage:
    """A storage with faults around another one.

    `inner` is what the next process finds. `steps`, `reads` and `lists` count what was asked of it.
    """

    def __init__(self, inner: Storage, faults: Faults | None = None) -> None:
        self.inner = inner
        self.faults = faults or Faults()
        self.steps: list[Step] = []
        self.reads = 0
        self.lists = 0
        self.used_bytes = 0
        self.is_dead = False
        self._lock = threading.RLock()
        self._writers: list[ObjectWriter] = []

    @property
    def location(self) -> str:
        return self.inner.location

    def list_objects(self, folder: str) -> list[ObjectInfo]:
        with self._alive():
            number, self.lists = self.lists, self.lists + 1
            if number in self.faults.failing_lists:
                raise storage_error(OSError(errno.EIO, ""), "list", folder)
            return self.inner.list_objects(folder)

    def exists(self, name: str) -> bool:
        with self._alive():
            return self.inner.exists(name)

    def size(self, name: str) -> int:
        with self._alive():
            return self.inner.size(name)

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        with self._alive():
            number, self.reads = self.reads, self.reads + 1
            if number in self.faults.failing_reads or name in self.faults.unreadable:
                raise storage_error(OSError(errno.EIO, ""), "read", name)
            data = bytearray(self.inner.read(name, offset, size))
            if data and number in self.faults.flipped_reads:
                bit = self.faults.flipped_reads[number] % (8 * len(data))
                data[bit >> 3] ^= 1 << (bit & 7)
            return bytes(data)

    def write(self, name: str, data: Buffer) -> None:
        self._store("write", name, data, self.inner.write)

    def write_new(self, name: str, data: Buffer) -> None:
        self._store("write_new", name, data, self.inner.write_new)

    def open_writer(self, folder: str) -> FaultyWriter:
        with self._alive():
            writer = self.inner.open_writer(folder)
            self._writers.append(writer)
            return FaultyWriter(self, writer, folder)

    def delete(self, name: str) -> None:
        with self._alive():
            size = self.inner.size(name) if self.inner.exists(name) else 0
            mode = self._step("delete", name)
            if mode in (None, Crash.AFTER):
                self.inner.delete(name)
                self.used_bytes -= size
            self._crash_if(mode)

    def free_size(self) -> int | None:
        with self._alive():
            capacity = self.faults.capacity_bytes
            return self.inner.free_size() if capacity is None else max(0, capacity - self.used_bytes)

    def stale_temporaries(self) -> list[ObjectInfo]:
        with self._alive():
            return self.inner.stale_temporaries()

    def remove_temporary(self, name: str) -> bool:
        with self._alive():
            return self.inner.remove_temporary(name)

    def append(self, writer: ObjectWriter, folder: str, buffer: Buffer) -> None:
        """A write of `FaultyWriter`."""
        with self._alive():
            mode = self._step("append", folder)
            if mode is Crash.TORN:
                writer.write(memoryview(buffer)[: len(buffer) // 2])
            self._crash_if(mode)
            try:
                self._take(len(buffer), folder)
            except StorageError:
                self.abort(writer)
                raise
            writer.write(buffer)

    def commit(self, writer: ObjectWriter, name: str) -> None:
        """A commit of `FaultyWriter`."""
        with self._alive():
            existed, size = self.inner.exists(name), writer.size
            mode = self._step("commit", name)
            if mode not in (Crash.BEFORE, Crash.TORN):
                self._writers.remove(writer)
                writer.commit(name)
            self._damage(name, 0 if existed else size, mode)
            self._crash_if(mode)

    def abort(self, writer: ObjectWriter) -> None:
        """An abort of `FaultyWriter`: the dead do not tidy up, the living get their space back."""
        with self._lock:
            if not self.is_dead and writer in self._writers:
                self._writers.remove(writer)
                self.used_bytes -= writer.size
                writer.abort()

    def _store(self, kind: str, name: str, data: Buffer, store: Callable[[str, Buffer], None]) -> None:
        with self._alive():
            existed = self.inner.exists(name)
            mode = self._step(kind, name)
            if mode is Crash.TORN and "/" in name:
                writer = self.inner.open_writer(name.partition("/")[0])
                writer.write(memoryview(data)[: len(data) // 2])
                self._writers.append(writer)
            if mode not in (Crash.BEFORE, Crash.TORN):
                self._take(len(data), name)
                store(name, data)
            self._damage(name, 0 if existed else len(data), mode)
            self._crash_if(mode)

    def _damage(self, name: str, size: int, mode: Crash | None) -> None:
        """Lose bytes of an object that is new; an older one was safe already."""
        if not size or mode not in (Crash.UNSYNCED, Crash.HALF):
            return
        kept = self.inner.read(name, 0, size // 2 if mode is Crash.HALF else 0)
        self.inner.delete(name)
        self.inner.write_new(name, kept)

    def _take(self, size: int, item: str) -> None:
        capacity = self.faults.capacity_bytes
        if capacity is not None and self.used_bytes + size > capacity:
            raise storage_error(OSError(errno.ENOSPC, ""), "write", item)
        self.used_bytes += size

    def _step(self, kind: str, name: str) -> Crash | None:
        self.steps.append(Step(kind, name))
        plan = self.faults.crash
        return plan.mode if plan is not None and plan.step == len(self.steps) - 1 else None

    def _crash_if(self, mode: Crash | None) -> None:
        if mode is None:
            return
        self.is_dead = True
        for writer in self._writers:
            _let_go(writer)
        raise CrashError(f"{mode.name} step {len(self.steps) - 1}: {self.steps[-1]}")

    @contextmanager
    def _alive(self) -> Iterator[None]:
        with self._lock:
            if self.is_dead:
                raise CrashError("the process is dead")
            yield


class FaultyWriter:
    """The writer of a `FaultyStorage`."""

    def __init__(self, storage: FaultyStorage, inner: ObjectWriter, folder: str) -> None:
        self._storage = storage
        self._inner = inner
        self._folder = folder

    @property
    def size(self) -> int:
        return self._inner.size

    def write(self, buffer: Buffer) -> None:
        self._storage.append(self._inner, self._folder, buffer)

    def commit(self, name: str) -> None:
        self._storage.commit(self._inner, name)

    def abort(self) -> None:
        self._storage.abort(self._inner)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.abort()


def _let_go(writer: ObjectWriter) -> None:
    """End a writer as the end of its process does: what reached the disk stays, the lock goes."""
    if isinstance(writer, LocalWriter):
        writer._temporary._flush()
        writer._temporary.close()


@dataclass(slots=True)
class _File:
    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


@dataclass(slots=True)
class _Folder:
    entries: dict[str, _Node] = field(default_factory=dict)
    synced: dict[str, _Node] = field(default_factory=dict)


_Node = _File | _Folder


class Survival(Enum):
    """What a loss of power leaves of what was not synced."""

    NOTHING = auto()
    """Only synced names and synced bytes: the least that POSIX promises."""
    NAMES = auto()
    """Every name, but synced bytes only: the zero-length files of delayed allocation."""
    SOME = auto()
    """Any of the names and any first part of the bytes, by the seed."""
    EVERYTHING = auto()
    """All: the process was killed and the machine went on."""


class VolatileDisk(SystemCalls):
    """The system calls of local storage, on a real folder, with a model of what is durable.

    Parameters
    ----------
    folder : an empty folder, in which everything happens.
    stop_at : the call to crash before, counted from 0 over the calls that change something, or None.
    is_torn : whether half of a write gets through when the crash comes at one.
    ignored : calls that report success and make nothing durable: `sync_file`, `sync_folder`, or a folder's name for
        the syncs of that folder alone. The crash tests must notice each.
    """

    def __init__(
        self, folder: Path, *, stop_at: int | None = None, is_torn: bool = False, ignored: frozenset[str] = frozenset()
    ) -> None:
        self.folder = folder
        self.calls: list[str] = []
        self.is_dead = False
        self._stop_at = stop_at
        self._is_torn = is_torn
        self._ignored = ignored
        self._root = _Folder()
        self._open: dict[int, _File | None] = {}

    def make_folder(self, path: Path, mode: int = 0o700) -> None:
        self._step("make_folder")
        super().make_folder(path, mode)
        self._parent(path).entries[path.name] = _Folder()

    def create_file(self, path: Path) -> int:
        self._step("create_file")
        descriptor = super().create_file(path)
        self._parent(path).entries[path.name] = self._open[descriptor] = _File()
        return descriptor

    def open_file(self, path: Path) -> int:
        self._check_alive()
        descriptor = super().open_file(path)
        self._open[descriptor] = None
        return descriptor

    def write(self, descriptor: int, data: memoryview) -> int:
        file = self._open[descriptor]
        assert file is not None
        if self._is_torn and len(self.calls) == self._stop_at:
            file.content += data[: len(data) // 2]
        self._step("write")
        file.content += data
        return super().write(descriptor, data)

    def sync_file(self, descriptor: int) -> None:
        self._step("sync_file")
        file = self._open[descriptor]
        assert file is not None
        if "sync_file" not in self._ignored:
            file.synced = bytes(file.content)

    def sync_folder(self, path: Path) -> None:
        self._step("sync_folder")
        folder = self._node(path)
        assert isinstance(folder, _Folder)
        if not self._ignored & {"sync_folder", path.name}:
            folder.synced = dict(folder.entries)

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename")
        super().rename(source, target)
        self._parent(target).entries[target.name] = self._parent(source).entries.pop(source.name)

    def link(self, source: Path, target: Path) -> None:
        self._step("link")
        super().link(source, target)
        self._parent(target).entries[target.name] = self._parent(source).entries[source.name]

    def unlink(self, path: Path) -> None:
        self._step("unlink")
        super().unlink(path)
        del self._parent(path).entries[path.name]

    def close(self, descriptor: int) -> None:
        self._open.pop(descriptor)
        os.close(descriptor)

    def stat(self, path: Path) -> os.stat_result:
        self._check_alive()
        return super().stat(path)

    def scan(self, folder: Path) -> list[os.DirEntry[str]]:
        self._check_alive()
        return super().scan(folder)

    def power_off(self) -> None:
        """Close what the dead process had open."""
        self.is_dead = True
        for descriptor in list(self._open):
            self.close(descriptor)

    def restart(self) -> None:
        """Let the next process use the disk: the machine went on, and nothing was synced that was not before."""
        self.is_dead = False
        self._stop_at = None

    def rebuild(self, target: Path, survival: Survival, seed: int = 0) -> None:
        """Make in `target` what a loss of power now may leave."""
        target.mkdir()
        _rebuild(self._root, target, survival, random.Random(seed))

    def _step(self, call: str) -> None:
        self._check_alive()
        if len(self.calls) == self._stop_at:
            self.power_off()
            raise CrashError(f"at call {len(self.calls)}: {call}")
        self.calls.append(call)

    def _check_alive(self) -> None:
        if self.is_dead:
            raise CrashError("the process is dead")

    def _node(self, path: Path) -> _Node:
        node: _Node = self._root
        for part in path.relative_to(self.folder).parts:
            assert isinstance(node, _Folder)
            node = node.entries[part]
        return node

    def _parent(self, path: Path) -> _Folder:
        node = self._node(path.parent)
        assert isinstance(node, _Folder)
        return node


def _rebuild(node: _Folder, target: Path, survival: Survival, dice: random.Random) -> None:
    for name, child in _surviving_entries(node, survival, dice).items():
        if isinstance(child, _Folder):
            (target / name).mkdir()
            _rebuild(child, target / name, survival, dice)
        else:
            (target / name).write_bytes(_surviving_bytes(child, survival, dice))


def _surviving_entries(node: _Folder, survival: Survival, dice: random.Random) -> dict[str, _Node]:
    if survival is Survival.NOTHING:
        return node.synced
    if survival is not Survival.SOME:
        return node.entries
    names = sorted(node.entries.keys() | node.synced.keys())
    chosen = {name: dice.choice((node.entries, node.synced)).get(name) for name in names}
    return {name: child for name, child in chosen.items() if child is not None}


def _surviving_bytes(file: _File, survival: Survival, dice: random.Random) -> bytes:
    if survival is Survival.EVERYTHING:
        return bytes(file.content)
    if survival is Survival.SOME:
        return bytes(file.content[: dice.randint(len(file.synced), len(file.content))])
    return file.synced
