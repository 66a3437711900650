"""The jobs that write: decode one block, check the chunks that are needed of it, and put them where they belong.

Runs in background threads and touches no books: what became of each file is returned. Small new files, the common
case, are made in batches straight from the block.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import itemgetter
from typing import Final, NamedTuple

from blake3 import blake3

from ohdiff._posix import punch_hole
from ohdiff.errors import IntegrityError
from ohdiff.filesystem import apply_attributes, compare_and_write, create_files
from ohdiff.repository.index_segment import BlockLocation
from ohdiff_format.envelope import Buffer
from ohdiff_format.limits import ID_PREFIX_SIZE, ID_SIZE
from ohdiff_format.tree import Listing

from .folders import Folder
from .report import Failure
from .work import HOLE_CELL_SIZE_BYTES, FileWork, Problem, RestoreRun, kept

# Together with the folders that other threads have open this stays far below the usual limit of 1024 descriptors.
_FOLDERS_PER_BATCH: Final = 32
# Offset and size in a block.
Place = tuple[int, int]
# A listing's id and a row.
FileKey = tuple[int, int]
_NONE: Final[frozenset[FileKey]] = frozenset()
_ZEROS: Final = bytes(HOLE_CELL_SIZE_BYTES)


class WholeFiles(NamedTuple):
    """New files of one directory each of which lies in one piece in the same block, row by row from `starts`."""

    folder: Folder
    listing: Listing
    rows: list[int]
    starts: list[int]


class Piece(NamedTuple):
    """One chunk of a file: where it goes in the file's content, and where it lies in its block."""

    work: FileWork
    position: int
    start: int
    size: int
    chunk_id: bytes


@dataclass(slots=True, eq=False)
class Bucket:
    """What is needed of one block; empty files need none."""

    location: BlockLocation | None
    wholes: list[WholeFiles] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)

    @property
    def entry_count(self) -> int:
        """Files and pieces in it."""
        return sum(len(files.rows) for files in self.wholes) + len(self.pieces)


def verified_places(bucket: Bucket) -> dict[Place, bytes]:
    """Chunks that were checked, in a bucket without damage: where they lie in the block -> 16 bytes of the id."""
    places = {
        (start, size): chunk_id[:ID_PREFIX_SIZE]
        for work, _, start, size, chunk_id in bucket.pieces
        if not work.is_over and work.error is None
    }
    for files in bucket.wholes:
        contents = files.listing.contents
        for row, start in zip(files.rows, files.starts, strict=True):
            ids, sizes, _ = contents[row]
            if len(sizes) == 1:
                places[(start, sizes[0])] = ids[:ID_PREFIX_SIZE]
    return places


class PieceOutcome(NamedTuple):
    """What became of one file's pieces out of one block."""

    work: FileWork
    pieces: int
    written: int
    error: Problem | None


class FileAt(NamedTuple):
    """One file."""

    folder: Folder
    listing: Listing
    row: int

    @property
    def name(self) -> bytes:
        """Its name."""
        return self.listing.names[self.row]


@dataclass(slots=True)
class Outcome:
    """What became of a bucket: of whole files what went wrong, and each file that got pieces."""

    errors: list[tuple[FileAt, Problem]] = field(default_factory=list)
    misread: list[FileAt] = field(default_factory=list)
    failures: list[tuple[FileAt, list[Failure]]] = field(default_factory=list)
    is_owner_refused: bool = False
    pieces: list[PieceOutcome] = field(default_factory=list)


@dataclass(slots=True)
class Damage:
    """The first chunk of each new file, and of each file's pieces, that is not what the snapshot says."""

    rows: dict[FileKey, bytes] = field(default_factory=dict)
    works: dict[FileWork, bytes] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.rows or self.works)


def take_bucket(run: RestoreRun, bucket: Bucket, base: Buffer | None = None) -> tuple[Outcome, Buffer | None]:
    """Decode a bucket's block, and write everything that is needed of it; storage that fails as such is raised.

    Parameters
    ----------
    base : what the block stands on; None has it loaded.

    Returns
    -------
    The outcome, and the plain bytes of the block unless it is damaged.
    """
    plain: Buffer = b""
    if bucket.location is not None:
        try:
            plain = run.blocks.load(bucket.location, base)
        except IntegrityError as error:
            return _all_failed(bucket, kept(error)), None
    damage = _find_damage(run, bucket, memoryview(plain))
    return write_bucket(run, bucket, plain, damage), None if damage else plain


def write_bucket(run: RestoreRun, bucket: Bucket, plain: Buffer, damage: Damage) -> Outcome:
    """Write everything that a bucket holds and that is not damaged."""
    outcome = Outcome()
    view = memoryview(plain)
    good = [_undamaged(bucket, files, damage, outcome) for files in bucket.wholes]
    for batch in _batches(good):
        _create_batch(run, batch, view, outcome)
    for work, pieces in groupby(bucket.pieces, itemgetter(0)):
        wrong = damage.works.get(work)
        if wrong is not None:
            outcome.pieces.append(PieceOutcome(work, len(list(pieces)), 0, _damaged(bucket, wrong)))
        else:
            outcome.pieces.append(_write_pieces(run, work, list(pieces), view))
    return outcome


def _all_failed(bucket: Bucket, error: IntegrityError) -> Outcome:
    outcome = Outcome()
    for files in bucket.wholes:
        outcome.errors += [(file, error) for file in _each(files)]
    for work, pieces in groupby(bucket.pieces, itemgetter(0)):
        outcome.pieces.append(PieceOutcome(work, len(list(pieces)), 0, error))
    return outcome


def _each(files: WholeFiles) -> list[FileAt]:
    return [FileAt(files.folder, files.listing, row) for row in files.rows]


def _damaged(bucket: Bucket, chunk_id: bytes) -> IntegrityError:
    pack = "" if bucket.location is None else bucket.location.pack_id.hex()
    return IntegrityError(
        f"chunk {chunk_id.hex()[:16]} of pack {pack[:16]} is not what was stored",
        hint="run: ohdiff check --read-data, which names the files that it touches",
    )


def _find_damage(run: RestoreRun, bucket: Bucket, view: memoryview) -> Damage:
    damage = Damage()
    # One hasher, reset for each chunk, takes 0.45 us a chunk where keying each anew takes 0.73.
    hasher = blake3(key=run.id_key)
    for files in bucket.wholes:
        _check_wholes(hasher, files, view, damage)
    _check_pieces(hasher, bucket.pieces, view, damage)
    return damage


def _check_wholes(hasher: blake3, files: WholeFiles, view: memoryview, damage: Damage) -> None:
    _, listing, rows, starts = files
    contents = listing.contents
    update, digest, reset = hasher.update, hasher.digest, hasher.reset
    for row, start in zip(rows, starts, strict=True):
        ids, sizes, _ = contents[row]
        if len(sizes) == 1:
            update(view[start : start + sizes[0]])
            if digest() != ids:
                damage.rows[(id(listing), row)] = ids
            reset()
        elif sizes:
            wrong = _first_wrong(hasher, ids, sizes, view[start:])
            if wrong is not None:
                damage.rows[(id(listing), row)] = wrong


def _check_pieces(hasher: blake3, pieces: list[Piece], view: memoryview, damage: Damage) -> None:
    for work, _, start, size, chunk_id in pieces:
        if work.is_over or work.error is not None:
            continue
        data = view[start : start + size]
        if len(data) != size or hasher.update(data).digest() != chunk_id:
            damage.works.setdefault(work, chunk_id)
        hasher.reset()


def _undamaged(bucket: Bucket, files: WholeFiles, damage: Damage, outcome: Outcome) -> WholeFiles:
    """The files that can be written; normally the very same object."""
    if not damage.rows:
        return files
    folder, listing, rows, starts = files
    good = WholeFiles(folder, listing, [], [])
    for row, start in zip(rows, starts, strict=True):
        wrong = damage.rows.get((id(listing), row))
        if wrong is None:
            good.rows.append(row)
            good.starts.append(start)
        else:
            outcome.errors.append((FileAt(folder, listing, row), _damaged(bucket, wrong)))
    return good


def _first_wrong(hasher: blake3, ids: bytes, sizes: Sequence[int], view: memoryview) -> bytes | None:
    start = 0
    for first, size in zip(range(0, len(ids), ID_SIZE), sizes, strict=True):
        chunk_id = ids[first : first + ID_SIZE]
        found = hasher.update(view[start : start + size]).digest()
        hasher.reset()
        if found != chunk_id:
            return chunk_id
        start += size
    return None


def _batches(wholes: Sequence[WholeFiles]) -> Iterator[list[WholeFiles]]:
    """The files in groups that lie in few directories."""
    for first in range(0, len(wholes), _FOLDERS_PER_BATCH):
        yield [files for files in wholes[first : first + _FOLDERS_PER_BATCH] if files.rows]


def _create_batch(run: RestoreRun, batch: list[WholeFiles], view: memoryview, outcome: Outcome) -> None:
    opened: list[Folder] = []
    try:
        descriptors, batch = _open_folders(run, batch, opened, outcome)
        files = [(listing, row) for _, listing, rows, _ in batch for row in rows]
        modes, uids, gids = run.wanted.columns(files)
        statuses = create_files(
            descriptors,
            [listing.names[row] for listing, row in files],
            view,
            [start for _, _, _, starts in batch for start in starts],
            [listing.sizes[row] for listing, row in files],
            modes,
            uids,
            gids,
            [listing.mtimes[row] for listing, row in files],
        )
        refused = _note_statuses(batch, statuses, outcome) if any(statuses) else _NONE
        _dress_batch(run, batch, refused, outcome)
        if run.options.verify:
            _read_back_batch(run, batch, refused, view, outcome)
    finally:
        for folder in opened:
            run.folders.release(folder)


def _open_folders(
    run: RestoreRun, batch: list[WholeFiles], opened: list[Folder], outcome: Outcome
) -> tuple[list[int], list[WholeFiles]]:
    """A directory's descriptor for each file of those that can be reached."""
    descriptors: list[int] = []
    reached = []
    for files in batch:
        try:
            fd = run.folders.acquire(files.folder).fd
        except OSError as error:
            outcome.errors += [(file, kept(error)) for file in _each(files)]
            continue
        opened.append(files.folder)
        descriptors += [fd] * len(files.rows)
        reached.append(files)
    return descriptors, reached


def _note_statuses(batch: Sequence[WholeFiles], statuses: Sequence[int], outcome: Outcome) -> set[FileKey]:
    """The files that could not be made."""
    refused: set[FileKey] = set()
    for file, status in zip(chain.from_iterable(map(_each, batch)), statuses, strict=True):
        if status < 0:
            outcome.is_owner_refused = True
        elif status:
            refused.add((id(file.listing), file.row))
            outcome.errors.append((file, OSError(status, os.strerror(status))))
    return refused


def _dress_batch(run: RestoreRun, batch: Sequence[WholeFiles], refused: Set[FileKey], outcome: Outcome) -> None:
    """Give those files their xattrs and flags that have any."""
    for files in batch:
        listing = files.listing
        if not (listing.xattrs or any(listing.flags)):
            continue
        for row in files.rows:
            if (row not in listing.xattrs and not listing.flags[row]) or (id(listing), row) in refused:
                continue
            with run.folders.opened(files.folder) as directory:
                failures = apply_attributes(directory, listing.names[row], run.wanted.attributes(listing, row))
            if failures:
                outcome.failures.append((FileAt(files.folder, listing, row), failures))


def _read_back_batch(
    run: RestoreRun, batch: Sequence[WholeFiles], refused: Set[FileKey], view: memoryview, outcome: Outcome
) -> None:
    for files in batch:
        for file, start in zip(_each(files), files.starts, strict=True):
            if (id(file.listing), file.row) in refused:
                continue
            try:
                if not _holds(run, file, view[start : start + file.listing.sizes[file.row]]):
                    outcome.misread.append(file)
            except OSError as error:
                outcome.errors.append((file, kept(error)))


def _holds(run: RestoreRun, file: FileAt, data: memoryview) -> bool:
    with run.folders.opened(file.folder) as directory:
        fd = directory.open_file(file.name)
    try:
        return os.pread(fd, len(data) + 1, 0) == data.tobytes()
    finally:
        os.close(fd)


def _write_pieces(run: RestoreRun, work: FileWork, pieces: list[Piece], view: memoryview) -> PieceOutcome:
    count = len(pieces)
    if work.is_over or work.error is not None:
        return PieceOutcome(work, count, 0, None)
    try:
        return PieceOutcome(work, count, _put_pieces(run, work, pieces, view), None)
    except OSError as error:
        return PieceOutcome(work, count, 0, kept(error))


def _put_pieces(run: RestoreRun, work: FileWork, pieces: list[Piece], view: memoryview) -> int:
    with run.folders.opened(work.folder) as directory:
        fd = directory.open_file_for_update(work.written_name)
    written = 0
    try:
        for position, start, size in _joined(pieces):
            for offset, within, length in work.ranges(position, size):
                data = view[start + within : start + within + length]
                written += _put(fd, offset, data, work, is_sparse=run.options.sparse)
    finally:
        os.close(fd)
    return written


def _joined(pieces: Sequence[Piece]) -> Iterator[tuple[int, int, int]]:
    """The (position, start, size) of runs of pieces that follow each other in the file and in the block."""
    position, start, size = pieces[0].position, pieces[0].start, 0
    for piece in pieces:
        if piece.position != position + size or piece.start != start + size:
            yield position, start, size
            position, start, size = piece.position, piece.start, 0
        size += piece.size
    yield position, start, size


def _put(fd: int, offset: int, data: memoryview, work: FileWork, *, is_sparse: bool) -> int:
    if is_sparse:
        return sum(
            _write(fd, start, data[start - offset : end - offset], work)
            for start, end in _data_runs(fd, offset, data, work)
        )
    return _write(fd, offset, data, work)


def _write(fd: int, offset: int, data: memoryview, work: FileWork) -> int:
    if work.way == "in place" and not work.has_wrong_holes:
        return compare_and_write(fd, offset, data)
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)
    return done


def _data_runs(fd: int, offset: int, data: memoryview, work: FileWork) -> Iterator[tuple[int, int]]:
    """The ranges of the file that get data; cells of zeros between them become holes."""
    end = offset + len(data)
    run_start = start = offset
    while start < end:
        # The first and the last cell may be cut off; what lies beside it in the file decides whether it is a hole.
        stop = min(end, (start // HOLE_CELL_SIZE_BYTES + 1) * HOLE_CELL_SIZE_BYTES)
        # As bytes, since comparing memoryviews takes twenty times as long.
        cell = data[start - offset : stop - offset].tobytes()
        if cell == _ZEROS[: stop - start] and _clear(fd, start, stop, work):
            if run_start < start:
                yield run_start, start
            run_start = stop
        start = stop
    if run_start < end:
        yield run_start, end


def _clear(fd: int, start: int, stop: int, work: FileWork) -> bool:
    """Make a cell a hole, if that can be done; a new file has nothing there yet."""
    if work.way != "in place":
        return True
    if stop - start < HOLE_CELL_SIZE_BYTES:
        return False
    try:
        punch_hole(fd, start, stop - start)
    except OSError:
        return False
    return True
