"""The `Engine` contract on a CUDA device, with the CPU's engine behind it for whatever the device does not finish.

Too little memory is answered by smaller batches, then by the CPU; a fault by the CPU for the rest of the run; a device
that others need by the CPU for that call. All give the same bytes, are counted, and are said (`notes`).
"""

from __future__ import annotations

import struct
import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from ohdiff.chunking.cpu import CpuEngine
from ohdiff.chunking.device_memory import DeviceMemory
from ohdiff.errors import DeviceError

from . import host_memory
from .batches import ChunkBatch, ChunkBatches, FileBatches, overlapping_ranges
from .device import CudaDevice, DeviceFaultError, OutOfDeviceMemoryError
from .kernels import BATCH_SIZE_MAX, TILE, Kernels, tiles_of
from .lanes import FILES_MAX, Lane
from .pacing import UNPACED, DevicePace, DeviceRefusedError
from .pools import FREE_SHARE, LanePools
from .work import (
    FEATURES_SIZE,
    ID_SIZE,
    ChunkJob,
    Constants,
    CutJob,
    Source,
    Units,
    Workplace,
    launch_features,
    launch_hashes,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ohdiff.chunking.rule import ChunkingRule

DEFAULT_BATCH_BYTES: Final = 32 << 20
FEATURES_BYTES_MIN: Final = 1 << 20
_LANES: Final = 4
_WINDOW: Final = 64
_WORD: Final = 4
_PAIR: Final = 8

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class CudaOptions:
    """How much of a device to use.

    Parameters
    ----------
    ordinal : the device's number.
    memory_max_bytes : ceiling of device memory; None for a quarter of what is free.
    batch_bytes : new bytes of a batch; the rule's largest chunk at least.
    lanes : batches that may be on the way at a time, of all threads.
    """

    ordinal: int = 0
    memory_max_bytes: int | None = None
    batch_bytes: int = DEFAULT_BATCH_BYTES
    lanes: int = _LANES


@dataclass(slots=True)
class CudaCounts:
    """What was not as usual in a run.

    Attributes
    ----------
    cpu_calls : calls that the CPU answered since the device failed.
    moved_calls : calls that the CPU answered because others needed the device.
    """

    cpu_calls: int = 0
    moved_calls: int = 0


class CudaEngine:
    """The `Engine` contract on a device; safe to share between threads.

    Attributes
    ----------
    features_bytes_min : features of less data are the CPU's: 0, which is for checking and measuring the kernel, or
        `FEATURES_BYTES_MIN` in use, where most calls are about one chunk and would be nothing but waiting.
    pace : asked before each unit; by default everything may start at once.
    pools : the lanes, and the memory that they take.

    Raises
    ------
    DeviceError
        By the constructor: the device cannot be used, or a kernel does not compile, and why.
    """

    name = "cuda"

    def __init__(self, rule: ChunkingRule, id_key: bytes, options: CudaOptions | None = None) -> None:
        self.rule = rule
        self.cpu = CpuEngine(rule, id_key)
        self.counts = CudaCounts()
        self.features_bytes_min = 0
        self.pace: DevicePace = UNPACED
        options = options or CudaOptions()
        self.device = CudaDevice(options.ordinal)
        self.kernel = self.device.description.architecture
        self._lock = threading.Lock()
        self._fault: str | None = None
        try:
            with self.device.bound():
                self.memory_max_bytes = options.memory_max_bytes or self.device.free_memory() // FREE_SHARE
                self._memory = self.device.new_pool(self.memory_max_bytes)
                self._kernels = Kernels(self.device)
                self._constants_memory, self._constants = self._upload_constants(rule, id_key)
                batch = max(rule.max_size, min(options.batch_bytes, BATCH_SIZE_MAX - rule.max_size))
                self.pools = LanePools(self.device, self._memory, rule, batch, options.lanes, self.memory_max_bytes)
        except DeviceFaultError as error:
            raise DeviceError(f"{self.device.description.name} cannot be used: {error}", item="cuda") from error

    @property
    def is_on_device(self) -> bool:
        """Whether the device is still used."""
        return self._fault is None

    @property
    def device_memory_taken(self) -> int:
        """Bytes of device memory that are held now."""
        return int(self._memory.total_bytes())

    @property
    def notes(self) -> list[str]:
        """What was not as usual, in words."""
        notes = []
        if self.pools.shrunk:
            notes.append(f"batches made smaller {self.pools.shrunk} times for want of device memory")
        if self.counts.moved_calls:
            notes.append(f"the CPU did {self.counts.moved_calls} calls while others needed the device")
        if self._fault is not None:
            notes.append(f"{self._fault}; the CPU did the rest ({self.counts.cpu_calls} calls), with the same result")
        return notes

    def disable(self, why: str) -> None:
        """From now on the CPU answers every call."""
        with self._lock:
            self._fault = self._fault or why
        self.pace.lose()

    def cut_segments(self, data: Buffer, segment_ends: Buffer | Sequence[int]) -> tuple[bytes, bytes]:
        """See `Engine.cut_segments`."""
        cuts, counts, _ = self._cut(data, segment_ends, is_open=False, wants_ids=False)
        return cuts, counts

    def cut_and_hash_segments(self, data: Buffer, segment_ends: Buffer | Sequence[int]) -> tuple[bytes, bytes, bytes]:
        """What `cut_segments` and `hash_chunks` give, with the data going up once: cuts, counts and ids."""
        return self._cut(data, segment_ends, is_open=False, wants_ids=True)

    def cut_stream(self, data: Buffer, is_last: bool) -> bytes:
        """See `Engine.cut_stream`."""
        return self._cut(data, None, is_open=not is_last, wants_ids=False)[0]

    def cut_and_hash_stream(self, data: Buffer, is_last: bool) -> tuple[bytes, bytes]:
        """The same in one pass: cuts and ids."""
        cuts, _, ids = self._cut(data, None, is_open=not is_last, wants_ids=True)
        return cuts, ids

    def hash_chunks(self, data: Buffer, cuts: Buffer) -> bytes:
        """See `Engine.hash_chunks`."""
        return self._per_chunk(data, cuts, ID_SIZE, launch_hashes, "ids", self.cpu.hash_chunks)

    def features(self, data: Buffer, cuts: Buffer) -> bytes:
        """See `Engine.features`."""
        if memoryview(data).nbytes < self.features_bytes_min:
            return self.cpu.features(data, cuts)
        return self._per_chunk(data, cuts, FEATURES_SIZE, launch_features, "features", self.cpu.features)

    def candidates(self, data: Buffer) -> tuple[bytes, bytes]:
        """See `Engine.candidates`."""
        with host_memory.address_of(data) as (address, size):
            if size < _WINDOW:
                return b"", b""
            return self._guarded(
                lambda: self._find_candidates(address, size),
                lambda: self.cpu.candidates(data),
            )

    def hash_resident(self, memory: DeviceMemory, cuts: Sequence[int]) -> bytes:
        """Ids of adjoining chunks that lie on the device; nothing but them is copied down.

        Raises
        ------
        DeviceError
            The memory is another device's, or the device failed: what lies there cannot be hashed elsewhere.
        """
        return self._where_it_lies("hashed", memory, lambda: self._hash_resident(memory, cuts))

    def cut_resident(self, memory: DeviceMemory, is_last: bool = True) -> tuple[bytes, bytes]:
        """Cuts and ids of a file that lies on the device, or of the next piece of one, as `Engine.cut_stream`.

        Raises as `hash_resident`.
        """
        source = Source(memory.pointer, is_resident=True)

        def cut() -> CutJob:
            return self._run_cut(source, [memory.size], is_open=not is_last, wants_ids=True)

        job = self._where_it_lies("cut", memory, cut)
        return job.results.cuts.tobytes(), b"".join(job.results.ids)

    def _where_it_lies(self, done: str, memory: DeviceMemory, work: Callable[[], _Result]) -> _Result:
        """What can be done nowhere else: a fault of the device is the caller's."""
        if self._fault is not None:
            raise DeviceError(f"what lies on the device cannot be {done}: {self._fault}", item="cuda")
        try:
            with self.device.bound():
                self._check_place(memory)
                return self._with_less_memory(work)
        except DeviceFaultError as error:
            self.disable(f"{self.device.description.name}: {error}")
            raise DeviceError(f"the device failed while data was {done}: {error}", item="cuda") from error

    def _cut(
        self, data: Buffer, segment_ends: Buffer | Sequence[int] | None, *, is_open: bool, wants_ids: bool
    ) -> tuple[bytes, bytes, bytes]:
        with host_memory.address_of(data) as (address, size):
            ends = [size] if segment_ends is None else checked_ends(segment_ends, size)
            if not ends or ends[-1] == 0:
                return b"", array("I", bytes(_WORD * len(ends))).tobytes(), b""

            def on_device() -> tuple[bytes, bytes, bytes]:
                source = Source(address, is_resident=False, is_pinned=self.device.is_pinned(address))
                results = self._run_cut(source, ends, is_open=is_open, wants_ids=wants_ids).results
                return results.cuts.tobytes(), results.counts.tobytes(), b"".join(results.ids)

            def on_cpu() -> tuple[bytes, bytes, bytes]:
                if is_open:
                    cuts, counts = self.cpu.cut_stream(data, False), b""
                else:
                    cuts, counts = self.cpu.cut_segments(data, ends)
                return cuts, counts, self.cpu.hash_chunks(data, cuts) if wants_ids else b""

            return self._guarded(on_device, on_cpu)

    def _run_cut(self, source: Source, ends: Sequence[int], *, is_open: bool, wants_ids: bool) -> CutJob:
        self._await_leave(source)
        pool = self.pools.now[1 if source.is_resident else 0]
        job = CutJob(self._place(source), len(ends), wants_ids=wants_ids)
        # A resident batch holds what is carried over, too, since that is not copied anywhere.
        size_max = pool.size.batch - (self.rule.max_size if source.is_resident else 0)
        kind = ("files" if len(ends) > 1 else "file") + ("" if wants_ids else " without ids")
        # What is carried over is copied in front of the batch that it comes from: it must be the shorter one.
        units = self._units(kind, source, size_max, max(TILE, self.rule.max_size))
        with pool.borrowed(_lanes_for(ends[-1], pool.size.batch)) as lanes:
            job.run(FileBatches(ends, FILES_MAX, is_open=is_open), lanes, units)
        return job

    def _per_chunk(
        self,
        data: Buffer,
        cuts: Buffer,
        result_size: int,
        launch: Callable[[Workplace, Lane, int, ChunkBatch], None],
        output: str,
        on_cpu: Callable[[Buffer, Buffer], bytes],
    ) -> bytes:
        """Something about each chunk; chunks that are larger than a batch are the CPU's."""
        with host_memory.address_of(data) as (address, size):
            ends = checked_ends(cuts, size)
            if not ends:
                return b""

            def on_device() -> bytes:
                source = Source(address, is_resident=False, is_pinned=self.device.is_pinned(address))
                job, batches = self._run_chunks(
                    source, ends, ChunkJob(self._place(source), result_size, launch, output)
                )
                done = iter(job.results)
                with memoryview(data) as view, view.cast("B") as octets:
                    parts = [
                        next(done) if batches.is_fitting(batch) else _alone(octets, batch, on_cpu)
                        for batch in batches.made
                    ]
                return b"".join(parts)

            return self._guarded(on_device, lambda: on_cpu(data, array("Q", ends)))

    def _hash_resident(self, memory: DeviceMemory, cuts: Sequence[int]) -> bytes:
        source = Source(memory.pointer, is_resident=True)
        job, batches = self._run_chunks(source, cuts, ChunkJob(self._place(source), ID_SIZE, launch_hashes, "ids"))
        if not all(map(batches.is_fitting, batches.made)):
            raise DeviceError("a chunk on the device is empty, or larger than a batch", item="cuda")
        return b"".join(job.results)

    def _run_chunks(self, source: Source, ends: Sequence[int], job: ChunkJob) -> tuple[ChunkJob, ChunkBatches]:
        """The results of all batches that the device can take, and all batches."""
        self._await_leave(source)
        pool = self.pools.now[1 if source.is_resident else 0]
        batches = ChunkBatches(ends, pool.size.batch, pool.size.chunks_max)
        units = self._units(job.output, source, pool.size.batch, TILE)
        with pool.borrowed(_lanes_for(ends[-1], pool.size.batch)) as lanes:
            job.run(batches, lanes, units)
        return job, batches

    def _await_leave(self, source: Source) -> None:
        """Wait for the device before lanes are taken, so that they can be given back while it is not to be had."""
        if not self.pace.wait(is_movable=not source.is_resident):
            raise DeviceRefusedError

    def _units(self, what: str, source: Source, size_max: int, size_min: int) -> Units:
        where = "device" if source.is_resident else "pinned" if source.is_pinned else "host"
        return Units(self.pace, f"{where}: {what}", size_max, size_min, is_movable=not source.is_resident)

    def _find_candidates(self, address: int, size: int) -> tuple[bytes, bytes]:
        positions, hashes = array("Q"), array("I")
        source = Source(address, is_resident=False, is_pinned=self.device.is_pinned(address))
        place = self._place(source)
        pool = self.pools.now[0]
        with pool.borrowed(1) as (lane,):
            for start, end in overlapping_ranges(size, pool.size.batch, _WINDOW - 1):
                pairs = array("I", self._list_candidates(place, lane, start, end - start))
                positions.extend([start + position for position in pairs[::2]])
                hashes.extend(pairs[1::2])
        return positions.tobytes(), hashes.tobytes()

    def _list_candidates(self, place: Workplace, lane: Lane, start: int, size: int) -> bytes:
        """(position, hash) of every candidate of one batch: counted first, so that the list has room for all."""
        kernels, at, stream, device = self._kernels, lane.scratch, lane.stream, self.device
        terms, threshold, tiles = place.constants.terms, self.rule.threshold_loose, tiles_of(size)
        place.upload(lane, start, size)
        kernels.find_candidates(stream, lane.data, size, terms, threshold, at["slots"], at["counts"])
        device.copy_out(lane.results, at["counts"], _WORD * tiles, stream)
        lane.wait()
        count = sum(array("I", host_memory.read(lane.results, _WORD * tiles)))
        if count == 0:
            return b""
        room = self._memory.malloc(_PAIR * count)
        listed, tables = int(room.ptr), (at["first"], at["unlisted"], at["unlisted_count"])
        kernels.place_tiles(stream, at["counts"], tiles, count, *tables)
        kernels.list_candidates(
            stream, lane.data, size, terms, threshold, at["slots"], at["counts"], at["first"], listed
        )
        found = bytearray(_PAIR * count)
        lane.wait()
        with host_memory.address_of(found, writable=True) as (target, found_size):
            device.fetch(target, listed, found_size)
        return bytes(found)

    def _guarded(self, on_device: Callable[[], _Result], on_cpu: Callable[[], _Result]) -> _Result:
        """The device's answer, or the CPU's: the call is idempotent, so whatever was begun is dropped."""
        if self._fault is None:
            try:
                return self._with_less_memory(on_device)
            except DeviceFaultError as error:
                self.disable(f"{self.device.description.name} failed: {error}")
            except DeviceRefusedError:
                with self._lock:
                    self.counts.moved_calls += 1
                return on_cpu()
        with self._lock:
            self.counts.cpu_calls += 1
        return on_cpu()

    def _with_less_memory(self, on_device: Callable[[], _Result]) -> _Result:
        """Again with smaller batches, as often as there is too little memory; then it is a fault like any other."""
        while True:
            pools = self.pools.now
            try:
                with self.device.bound():
                    return on_device()
            except OutOfDeviceMemoryError as error:
                if not self.pools.shrink(pools):
                    raise DeviceFaultError(f"out of memory ({error})") from error

    def _place(self, source: Source) -> Workplace:
        return Workplace(self.device, self._kernels, self._constants, self.rule, source)

    def _check_place(self, memory: DeviceMemory) -> None:
        found = self.device.device_of(memory.pointer) if memory.device_id is None else memory.device_id
        if found != self.device.ordinal:
            raise DeviceError(
                f"a tensor lies on CUDA device {found}, and device {self.device.ordinal} is used", item="cuda"
            )

    def _upload_constants(self, rule: ChunkingRule, id_key: bytes) -> tuple[Any, Constants]:
        words = struct.unpack("<32I", rule.words)
        terms = struct.pack("<256I", *(words[byte & 15] ^ words[16 + (byte >> 4)] for byte in range(256)))
        memory = self._memory.malloc(len(terms) + len(id_key))
        stream = self.device.new_stream()
        with host_memory.address_of(terms + id_key) as (address, size):
            self.device.copy_in(int(memory.ptr), address, size, stream)
            stream.synchronize()
        return memory, Constants(int(memory.ptr), int(memory.ptr) + len(terms))

    def new_memory(self, size: int) -> DeviceMemory:
        """Memory below the engine's ceiling, freed when nobody holds it; OutOfDeviceMemoryError if there is none."""
        with self.device.bound():
            memory = self._memory.malloc(size)
        return DeviceMemory(int(memory.ptr), size, self.device.ordinal, memory)


def checked_ends(ends: Buffer | Sequence[int], size: int) -> list[int]:
    """Offsets as integers; ValueError unless they ascend and lie in the data."""
    if isinstance(ends, list | tuple):
        numbers = list(ends)
    else:
        numbers = memoryview(cast("Buffer", ends)).cast("B").cast("Q").tolist()
    if numbers and numbers[-1] > size:
        raise ValueError("an end lies beyond the data")
    if any(before > after for before, after in pairwise([0, *numbers])):
        raise ValueError("ends must ascend")
    return numbers


def _alone(octets: memoryview, batch: ChunkBatch, on_cpu: Callable[[Buffer, Buffer], bytes]) -> bytes:
    """What the CPU says of chunks that no batch can take: one that is too large, or empty ones."""
    with octets[batch.start : batch.end] as part:
        return on_cpu(part, array("Q", [end - batch.start for end in batch.ends]))


def _lanes_for(size: int, batch: int) -> int:
    """Two lanes alternate when there is more than one batch; of more, one call makes no use."""
    return 2 if size > batch else 1
