"""Plans which block gives what: looks chunks up, sorts them by block, and sends blocks off while the walk goes on.

A bounded number of files and chunks is planned ahead of the writers. When that is reached, the blocks that were not
asked for lately are sent off. The walk goes in the order in which blocks were filled, so that a block that is sent
off is seldom asked for again; and the writers are busy while the walk goes on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Final, Protocol

from ohdiff.errors import IntegrityError
from ohdiff.repository.index_segment import BlockLocation, ChunkLocation
from ohdiff_format.tree import Listing

from .folders import Folder
from .steps import Done, Steps, take_step
from .work import HOLE_CELL_SIZE_BYTES, FileWork, RestoreRun
from .write import Bucket, Outcome, Piece, WholeFiles

# A planned file or chunk takes about a kilobyte, most of it for its row of the listing, and half as many again may be
# on their way. Measured on 78,579 files in 435 blocks, most of which stand on others: 23 blocks are decoded more than
# once and memory peaks at 130 MB; with 16,000 it is 55 and 115 MB, with 80,000 it is 11 and 164 MB.
WINDOW_ENTRIES: Final = 32_000
_LOOK_UP_ENTRIES: Final = 2048
_NEVER: Final = 2**64


class WindowUser(Protocol):
    """Keeps the books of the files that a window writes."""

    def begin(self, work: FileWork) -> None:
        """The first piece of a file is about to be written."""

    def scattered(self, folder: Folder, listing: Listing, row: int) -> None:
        """A new file turned out to lie in several blocks: give it to `add_chunk` piece by piece."""

    def settle(self, bucket: Bucket, outcome: Outcome) -> None:
        """A block has been dealt with."""

    def missing(self, folder: Folder, name: bytes, error: IntegrityError) -> None:
        """A new file cannot be restored for want of a chunk."""

    def lacks(self, work: FileWork, error: IntegrityError) -> None:
        """A file lacks one of its chunks; the piece counts as dealt with."""


class Window:
    """Collects the chunks that are needed; used by the main thread only."""

    def __init__(self, run: RestoreRun, user: WindowUser) -> None:
        self._run = run
        self._user = user
        self._new_files: list[tuple[Folder, Listing, list[int]]] = []
        self._new_ids: list[bytes] = []
        self._chunks: list[tuple[FileWork, int, int]] = []
        self._chunk_ids: list[bytes] = []
        self._empty = Bucket(None)
        # In the order in which they were last asked for.
        self._buckets: OrderedDict[BlockLocation, Bucket] = OrderedDict()
        self._unplaced = 0
        self._placed = 0
        self._sent: dict[Bucket, int] = {}
        self._sent_count = 0

    @property
    def is_full(self) -> bool:
        """Whether `send` should be called."""
        return self._unplaced + self._placed >= WINDOW_ENTRIES

    def add_new_files(self, folder: Folder, listing: Listing, rows: list[int]) -> None:
        """New files of one directory without holes or links; in all likelihood each lies in one block."""
        contents = listing.contents
        empty = [row for row in rows if not contents[row].sizes]
        if empty:
            self._empty.wholes.append(WholeFiles(folder, listing, empty, [0] * len(empty)))
            self._placed += len(empty)
            rows = [row for row in rows if contents[row].sizes]
        self._unplaced += len(rows)
        self._new_files.append((folder, listing, rows))
        for row in rows:
            content = contents[row]
            if len(content.sizes) == 1:
                self._new_ids.append(content.ids)
            else:
                self._new_ids += content.chunk_ids()
        if len(self._new_ids) >= _LOOK_UP_ENTRIES:
            self._place_new_files()

    def add_chunk(self, work: FileWork, position: int, size: int, chunk_id: bytes) -> None:
        """One chunk that a file needs at this position of its content."""
        self._unplaced += 1
        self._chunks.append((work, position, size))
        self._chunk_ids.append(chunk_id)
        if len(self._chunk_ids) >= _LOOK_UP_ENTRIES:
            self._place_chunks()

    def place(self) -> None:
        """Look up what has been added; files that lie in several blocks are told to the user."""
        self._place_new_files()
        self._place_chunks()

    def send(self, *, is_last: bool = False) -> None:
        """Hand over the older half, or all, once most of what was handed over before has been dealt with."""
        self._run.crew.wait_while(lambda: self._sent_count > WINDOW_ENTRIES // 2)
        self.place()
        taken = [self._empty] if self._empty.wholes else []
        self._placed -= self._empty.entry_count
        self._empty = Bucket(None)
        while self._buckets and (is_last or self._placed > WINDOW_ENTRIES // 2):
            _, bucket = self._buckets.popitem(last=False)
            self._placed -= bucket.entry_count
            taken.append(bucket)
        for bucket in taken:
            self._sent[bucket] = bucket.entry_count
            self._sent_count += bucket.entry_count
            self._begin(bucket)
        steps = Steps(self._run.index, taken)
        for step in steps.take_first():
            self._run.crew.submit(partial(take_step, self._run, steps, step), partial(self._settle, steps))

    @property
    def has_entries(self) -> bool:
        """Whether anything is planned that was not handed over."""
        return bool(self._unplaced or self._placed)

    def unsettled(self) -> list[Bucket]:
        """What has not been dealt with, for when the restore is cut short."""
        return [*self._sent, *self._buckets.values()]

    def _begin(self, bucket: Bucket) -> None:
        for piece in bucket.pieces:
            if not piece.work.is_begun:
                self._user.begin(piece.work)

    def _settle(self, steps: Steps, done: Done) -> None:
        for bucket, outcome in done.outcomes:
            self._sent_count -= self._sent.pop(bucket, 0)
            self._user.settle(bucket, outcome)
        for step in done.ready:
            self._run.crew.submit_first(partial(take_step, self._run, steps, step), partial(self._settle, steps))

    def _bucket(self, location: BlockLocation) -> Bucket:
        bucket = self._buckets.get(location)
        if bucket is None:
            bucket = self._buckets[location] = Bucket(location)
        else:
            self._buckets.move_to_end(location)
        return bucket

    def _place_new_files(self) -> None:
        files, ids = self._new_files, self._new_ids
        self._new_files, self._new_ids = [], []
        self._unplaced = len(self._chunks)
        places = iter(self._run.index.find(ids))
        for folder, listing, rows in files:
            self._place_directory(folder, listing, rows, places)

    def _place_directory(
        self, folder: Folder, listing: Listing, rows: list[int], places: Iterator[ChunkLocation | None]
    ) -> None:
        contents = listing.contents
        scatters_from = HOLE_CELL_SIZE_BYTES if self._run.options.sparse else _NEVER
        by_block: dict[BlockLocation, WholeFiles] = {}
        block: BlockLocation | None = None
        into: list[int] = []
        starts: list[int] = []
        for row in rows:
            sizes = contents[row].sizes
            place = next(places)
            if len(sizes) > 1:
                place = self._place_of_many(folder, listing, row, [place, *islice(places, len(sizes) - 1)])
            elif place is None:
                self._user.missing(folder, listing.names[row], _not_found(contents[row].ids))
            if place is None:
                continue
            if listing.sizes[row] >= scatters_from:
                self._user.scattered(folder, listing, row)
                continue
            if place.block is not block and place.block != block:
                block = place.block
                files = by_block.get(block)
                if files is None:
                    files = by_block[block] = WholeFiles(folder, listing, [], [])
                    self._bucket(block).wholes.append(files)
                into, starts = files.rows, files.starts
            into.append(row)
            starts.append(place.offset)
            self._placed += 1

    def _place_of_many(
        self, folder: Folder, listing: Listing, row: int, places: list[ChunkLocation | None]
    ) -> ChunkLocation | None:
        """Where a file of several chunks begins, if they lie one after the other in one block."""
        content = listing.contents[row]
        if None in places:
            missing = content.chunk_ids()[places.index(None)]
            self._user.missing(folder, listing.names[row], _not_found(missing))
        elif _is_run(places, content.sizes):
            return places[0]
        else:
            self._user.scattered(folder, listing, row)
        return None

    def _place_chunks(self) -> None:
        while self._chunk_ids:
            chunks, ids = self._chunks, self._chunk_ids
            self._chunks, self._chunk_ids = [], []
            self._unplaced = sum(len(rows) for _, _, rows in self._new_files)
            places = self._run.index.find(ids)
            for (work, position, size), chunk_id, place in zip(chunks, ids, places, strict=True):
                if place is None:
                    self._user.lacks(work, _not_found(chunk_id))
                    continue
                self._bucket(place.block).pieces.append(Piece(work, position, place.offset, size, chunk_id))
                self._placed += 1


def _is_run(places: list[ChunkLocation | None], sizes: tuple[int, ...]) -> bool:
    """Whether chunks lie one after the other in one block."""
    block: BlockLocation | None = None
    end = 0
    for place, size in zip(places, sizes, strict=True):
        if place is None:
            return False
        if block is None:
            block, end = place.block, place.offset
        if place.block != block or place.offset != end:
            return False
        end += size
    return True


def _not_found(chunk_id: bytes) -> IntegrityError:
    return IntegrityError(
        f"chunk {chunk_id.hex()[:16]} is in no index",
        hint="run: ohdiff check, which names the files that it touches",
        item=chunk_id.hex(),
    )
