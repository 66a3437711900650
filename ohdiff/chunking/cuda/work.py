"""Batches on their way through lanes: uploaded, started, finished, two of them at a time where there are two lanes.

While the kernels of one batch run, the next one is copied up. What follows the last cut of a file that goes on is
carried over on the device, in front of the next batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from ohdiff.chunking.rule import ChunkingRule

from . import host_memory
from .batches import ChunkBatch, FileBatch
from .device import CudaDevice
from .kernels import SLOTS, TILE, Kernels, tiles_of
from .lanes import Lane
from .pacing import DevicePace, DeviceRefusedError, DeviceTurn

_WORD: Final = 4
ID_SIZE: Final = 32
FEATURES_SIZE: Final = 48
# What is copied up lies in pinned memory piece by piece, so that the first piece travels while the next is moved.
_STAGING_PIECE_BYTES: Final = 4 << 20

_Batch = TypeVar("_Batch", FileBatch, ChunkBatch)
_Made = TypeVar("_Made", FileBatch, ChunkBatch, covariant=True)


class Batches(Protocol[_Made]):
    """The batches of one call, made as they are asked for."""

    @property
    def is_done(self) -> bool: ...

    def next(self, size_max: int) -> _Made | None:
        """The next one, of about so many bytes at most; None when there is none left."""
        ...


@dataclass(frozen=True, slots=True)
class Constants:
    """Device addresses of what does not change: T[b] of the rule, and the key of ids."""

    terms: int
    key: int


@dataclass(frozen=True, slots=True)
class Source:
    """Bytes to be worked on.

    Parameters
    ----------
    address : in host memory, or on the device if `is_resident`.
    is_pinned : host memory that needs no detour.
    """

    address: int
    is_resident: bool
    is_pinned: bool = False


@dataclass(slots=True)
class Workplace:
    """What every piece of work shares."""

    device: CudaDevice
    kernels: Kernels
    constants: Constants
    rule: ChunkingRule
    source: Source

    def upload(self, lane: Lane, start: int, size: int) -> None:
        """Bring bytes to the device, if they are not there."""
        if self.source.is_resident:
            return
        if self.source.is_pinned:
            self.device.copy_in(lane.data, self.source.address + start, size, lane.stream)
            return
        for position in range(0, size, _STAGING_PIECE_BYTES):
            count = min(_STAGING_PIECE_BYTES, size - position)
            host_memory.copy(lane.staging + position, self.source.address + start + position, count)
            self.device.copy_in(lane.data + position, lane.staging + position, count, lane.stream)

    def upload_table(self, lane: Lane, table: array[int], target: int) -> None:
        """Bring numbers of 32 bits to the device; one table a batch, since there is one place for it."""
        with host_memory.address_of(table) as (address, size):
            host_memory.copy(lane.tables, address, size)
            self.device.copy_in(target, lane.tables, size, lane.stream)


@dataclass(frozen=True, slots=True)
class Units:
    """How the batches of one call become units.

    Parameters
    ----------
    pace : lets them start.
    kind : see `DevicePace.turn`.
    size_max : new bytes of a batch that there is room for.
    size_min : fewer are not worth a unit, or are not possible, whatever is allowed.
    is_movable : the CPU can do the call.
    """

    pace: DevicePace
    kind: str
    size_max: int
    size_min: int
    is_movable: bool

    def turn(self, *, may_wait: bool) -> DeviceTurn | None:
        """Leave for the next one; None if it has to be waited for, and may not be."""
        turn = self.pace.turn(self.kind, self.size_max, may_wait=may_wait, is_movable=self.is_movable)
        if turn is None and may_wait:
            raise DeviceRefusedError
        return turn

    def size(self, turn: DeviceTurn) -> int:
        """Bytes of a batch: whole tiles, since a kernel's block has one, whether it is full or not."""
        whole = turn.size_bytes // TILE * TILE
        return self.size_max if turn.size_bytes >= self.size_max else min(self.size_max, max(self.size_min, whole))


@dataclass(frozen=True, slots=True)
class _Running(Generic[_Batch]):
    """A batch on its way."""

    batch: _Batch
    lane: Lane
    turn: DeviceTurn


class Job(Generic[_Batch]):
    """What is done with each batch of one call."""

    def __init__(self, place: Workplace) -> None:
        self.place = place
        self._last_lane: Lane | None = None

    def upload(self, batch: _Batch, lane: Lane) -> None:
        """Begin to bring the batch to the device."""
        self.place.upload(lane, batch.start, batch.size)

    def carry_over(self, batch: _Batch, lane: Lane) -> None:
        """Bring what the batch takes over; the one before is finished."""

    def start(self, batch: _Batch, lane: Lane) -> None:
        """Launch kernels."""
        raise NotImplementedError

    def finish(self, batch: _Batch, lane: Lane) -> None:
        """Wait for them, and take the results."""
        raise NotImplementedError

    def run(self, batches: Batches[_Batch], lanes: Sequence[Lane], units: Units) -> None:
        """Every batch, in order, each as one unit; the next one is begun before the last is finished if that may be.

        Raises
        ------
        DeviceRefusedError
            The device is not to be had, and the CPU can do the call; what was done so far is dropped.
        """
        running: _Running[_Batch] | None = None
        turn: DeviceTurn | None = None
        number = 0
        try:
            while not batches.is_done:
                turn = units.turn(may_wait=running is None)
                if turn is None:
                    assert running is not None, "who may wait gets a turn, or an error"
                    self._finish(running)
                    running = None
                elif (batch := batches.next(units.size(turn))) is None:
                    turn.end()
                else:
                    running = self._begin(batch, lanes[number % len(lanes)], turn, running)
                    number += 1
                turn = None
            if running is not None:
                self._finish(running)
        except BaseException:
            for each in (None if running is None else running.turn, turn):
                if each is not None:
                    each.end(is_ok=False)
            raise

    def _begin(self, batch: _Batch, lane: Lane, turn: DeviceTurn, before: _Running[_Batch] | None) -> _Running[_Batch]:
        is_same_lane, self._last_lane = lane is self._last_lane, lane
        if not is_same_lane:
            self.upload(batch, lane)
        if before is not None:
            self._finish(before)
        self.carry_over(batch, lane)
        if is_same_lane:
            # Not before what is carried over has been taken out of the same buffer.
            self.upload(batch, lane)
        turn.submit(batch.size)
        self.start(batch, lane)
        return _Running(batch, lane, turn)

    def _finish(self, running: _Running[_Batch]) -> None:
        self.finish(running.batch, running.lane)
        running.turn.end()


@dataclass(slots=True)
class CutResults:
    """Cuts as offsets in the data, chunks of each file, and ids if they were asked for."""

    cuts: array[int] = field(default_factory=lambda: array("Q"))
    counts: array[int] = field(default_factory=lambda: array("I"))
    ids: list[bytes] = field(default_factory=list)


class CutJob(Job[FileBatch]):
    """Cuts files, and hashes the chunks in the same pass.

    Parameters
    ----------
    file_count : files of the call.
    """

    def __init__(self, place: Workplace, file_count: int, *, wants_ids: bool) -> None:
        super().__init__(place)
        self.results = CutResults(counts=array("I", bytes(_WORD * file_count)))
        self._wants_ids = wants_ids
        # Where the last batch's unfinished chunk begins in the data, and where that is on the device, in which lane.
        self._open_start = 0
        self._open_lane: Lane | None = None
        self._open_address = 0

    def carry_over(self, batch: FileBatch, lane: Lane) -> None:
        """Copy the unfinished chunk in front of the new bytes."""
        if not batch.continues or self.place.source.is_resident:
            return
        size, before = batch.start - self._open_start, self._open_lane
        if size == 0:
            return
        assert before is not None, "only a batch that follows another continues it"
        # In the stream of the lane that it lies in: whatever overwrites it there comes later.
        self.place.device.copy_within(lane.data - size, self._open_address, size, before.stream)
        if before is not lane:
            before.event.record(before.stream)
            lane.stream.wait_event(before.event)

    def start(self, batch: FileBatch, lane: Lane) -> None:
        """Find candidates, select cuts, and hash what lies between them."""
        origin = self._origin(batch)
        size = batch.end - origin
        if size == 0:
            return
        place, kernels, rule, at, stream = self.place, self.place.kernels, self.place.rule, lane.scratch, lane.stream
        data, terms, segments = self._address(batch, lane), place.constants.terms, len(batch.ends)
        place.upload_table(lane, array("I", [end - origin for end in batch.ends]), at["segment_ends"])
        tiles = tiles_of(size)
        kernels.find_candidates(stream, data, size, terms, rule.threshold_loose, at["slots"], at["counts"])
        kernels.place_tiles(
            stream, at["counts"], tiles, tiles * SLOTS, at["first"], at["unlisted"], at["unlisted_count"]
        )
        kernels.list_candidates(
            stream, data, size, terms, rule.threshold_loose, at["slots"], at["counts"], at["first"], at["list"]
        )
        sizes = (rule.min_size, rule.avg_size, rule.max_size, rule.threshold_strict, rule.threshold_loose)
        listed = (at["first"], at["list"], at["unlisted"], at["unlisted_count"])
        files = (at["segment_ends"], segments, int(batch.is_open))
        kernels.select_cuts(stream, segments, (data, terms, *files, *sizes, *listed, at["found"], at["cut_counts"]))
        kernels.place_cuts(stream, at["cut_counts"], segments, at["cut_first"])
        kernels.gather_cuts(
            stream, at["segment_ends"], segments, rule.min_size, at["found"], at["cut_first"], at["bounds"]
        )
        count = at["cut_first"] + _WORD * segments
        if self._wants_ids:
            chunks_max = size // rule.min_size + segments
            tables = (at["leaf_first"], place.constants.key, at["nodes"], at["ids"])
            kernels.hash_chunks(stream, data, size, at["bounds"], count, chunks_max, *tables)
        place.device.copy_out(lane.results, count, _WORD, stream)

    def finish(self, batch: FileBatch, lane: Lane) -> None:
        """Take cuts and ids: only as many as there are."""
        origin = self._origin(batch)
        if batch.end > origin:
            self._collect(batch, lane, origin)
        if batch.is_open:
            cuts = self.results.cuts
            address = self._address(batch, lane)
            # The origin is where the unfinished chunk began before, unless this batch has cut it.
            start = cuts[-1] if cuts and cuts[-1] > origin else origin
            self._open_start, self._open_lane, self._open_address = start, lane, address + start - origin

    def _collect(self, batch: FileBatch, lane: Lane, origin: int) -> None:
        device, at, stream, results = self.place.device, lane.scratch, lane.stream, lane.results
        lane.wait()
        (count,) = array("I", host_memory.read(results, _WORD))
        counts_size, bounds_size = _WORD * len(batch.ends), _WORD * count
        device.copy_out(results, at["cut_counts"], counts_size, stream)
        device.copy_out(results + counts_size, at["bounds"] + _WORD, bounds_size, stream)
        if self._wants_ids:
            device.copy_out(results + counts_size + bounds_size, at["ids"], ID_SIZE * count, stream)
        lane.wait()
        for file, chunks in enumerate(array("I", host_memory.read(results, counts_size)), batch.first_file):
            self.results.counts[file] += chunks
        bounds = array("I", host_memory.read(results + counts_size, bounds_size))
        self.results.cuts.extend([origin + bound for bound in bounds])
        if self._wants_ids:
            self.results.ids.append(host_memory.read(results + counts_size + bounds_size, ID_SIZE * count))

    def _origin(self, batch: FileBatch) -> int:
        return self._open_start if batch.continues else batch.start

    def _address(self, batch: FileBatch, lane: Lane) -> int:
        source, origin = self.place.source, self._origin(batch)
        return source.address + origin if source.is_resident else lane.data - (batch.start - origin)


class ChunkJob(Job[ChunkBatch]):
    """Hashes chunks, or finds their features.

    Parameters
    ----------
    result_size : bytes of result a chunk.
    launch : (place, lane, data address, batch) launches what fills `output`.
    output : the scratch buffer of the result.

    Attributes
    ----------
    results : of each batch, in order.
    """

    def __init__(
        self,
        place: Workplace,
        result_size: int,
        launch: Callable[[Workplace, Lane, int, ChunkBatch], None],
        output: str,
    ) -> None:
        super().__init__(place)
        self._result_size = result_size
        self._launch = launch
        self.output = output
        self.results: list[bytes] = []

    def start(self, batch: ChunkBatch, lane: Lane) -> None:
        """Upload the bounds, and launch."""
        place, at = self.place, lane.scratch
        # Behind the bounds their number, which the kernels that hash read from there.
        bounds = array("I", [0, *(end - batch.start for end in batch.ends), len(batch.ends)])
        place.upload_table(lane, bounds, at["bounds"])
        address = place.source.address + batch.start if place.source.is_resident else lane.data
        self._launch(place, lane, address, batch)
        size = self._result_size * len(batch.ends)
        place.device.copy_out(lane.results, at[self.output], size, lane.stream)

    def finish(self, batch: ChunkBatch, lane: Lane) -> None:
        """Take the results."""
        lane.wait()
        self.results.append(host_memory.read(lane.results, self._result_size * len(batch.ends)))


def launch_hashes(place: Workplace, lane: Lane, data: int, batch: ChunkBatch) -> None:
    """The ids of a batch."""
    at, chunks = lane.scratch, len(batch.ends)
    place.kernels.hash_chunks(
        lane.stream,
        data,
        batch.size,
        at["bounds"],
        at["bounds"] + _WORD * (chunks + 1),
        chunks,
        at["leaf_first"],
        place.constants.key,
        at["nodes"],
        at["ids"],
    )


def launch_features(place: Workplace, lane: Lane, data: int, batch: ChunkBatch) -> None:
    """The features of a batch."""
    at = lane.scratch
    place.kernels.find_features(
        lane.stream, data, batch.size, place.constants.terms, at["bounds"], len(batch.ends), at["features"]
    )
