"""Regular files that are there already: which of their data and attributes are right, and what must be rewritten.

Data is compared by hashing what is there against the ids in the snapshot; only what differs is fetched.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from ohdiff.errors import IntegrityError
from ohdiff.filesystem import data_extents, may_have_holes
from ohdiff_format.limits import ID_SIZE

from .check import (
    BATCH_FILES_MAX,
    BATCH_SIZE_BYTES,
    SMALL_FILE_SIZE_BYTES_MAX,
    UNIT_SIZE_BYTES,
    CheckUnit,
    Mismatches,
    check_unit,
    find_mismatches,
    is_refusal,
    read_back,
)
from .files import FileBook
from .folders import Folder
from .links import LinkGroup
from .work import Existing, Extent, FileWork, Problem, RestoreRun, kept

_CHECKS_WAITING_MAX: Final = 8


class ExistingFiles:
    """Decides on files that exist; used by the main thread only.

    Parameters
    ----------
    files : writes what must be written.
    release, settle_links : as for FileBook.
    """

    def __init__(
        self,
        run: RestoreRun,
        files: FileBook,
        release: Callable[[Folder], None],
        settle_links: Callable[[LinkGroup, bool], None],
    ) -> None:
        self._run = run
        self._report = run.report
        self._files = files
        self._release = release
        self._settle_links = settle_links
        self._small: list[Existing] = []
        self._small_size = 0

    @property
    def has_due(self) -> bool:
        """Whether `flush` has anything to do."""
        return bool(self._small)

    def take(self, item: Existing) -> None:
        """A regular file that is there and may be rewritten; called from the walk's loop only."""
        if self._run.options.overwrite == "if-changed" and item.has_size and item.has_mtime:
            self._trust(item)
        elif self._is_small(item):
            self._small.append(item)
            self._small_size += item.size
            if self._small_size >= BATCH_SIZE_BYTES or len(self._small) >= BATCH_FILES_MAX:
                self.flush()
        else:
            self._check_large(item)

    def flush(self) -> None:
        """Have the small files checked that were gathered."""
        batch, self._small, self._small_size = self._small, [], 0
        if batch:
            self._submit(partial(find_mismatches, self._run, batch), partial(self._settle_small, batch))

    def _is_small(self, item: Existing) -> bool:
        listing, row = item.listing, item.row
        return (
            item.has_size
            and item.size <= SMALL_FILE_SIZE_BYTES_MAX
            and not listing.contents[row].depth
            and row not in listing.extents
            and not may_have_holes(item.size, item.found.blocks512[item.at])
            and sum(listing.contents[row].sizes) == item.size
        )

    def _settle_small(self, batch: Sequence[Existing], mismatches: Mismatches) -> None:
        for item, wrong in zip(batch, mismatches, strict=True):
            if wrong == []:
                self._keep(item)
            elif wrong is None or self._must_replace(item):
                self._files.replace(_work(item))
            else:
                self._rewrite_small(item, wrong)
        self._report.tick()

    def _rewrite_small(self, item: Existing, wrong: list[int]) -> None:
        work = _work(item)
        self._files.track(work)
        ids, sizes, _ = item.listing.contents[item.row]
        for number in wrong:
            chunk_id = ids[number * ID_SIZE : (number + 1) * ID_SIZE]
            self._files.need(work, sum(sizes[:number]), sizes[number], chunk_id)
        self._files.done(work)

    def _check_large(self, item: Existing) -> None:
        """Check a file chunk by chunk, in units that several threads share."""
        work = _work(item)
        self._files.track(work)
        try:
            disk_extents = self._disk_extents(work, item)
            work.is_changed = work.has_wrong_holes or not item.has_size
            if work.is_changed and self._must_replace(item):
                self._files.replace(work)
                return
            self._check_units(work, disk_extents)
        except (IntegrityError, OSError) as error:
            work.error = work.error or kept(error)
        self._done(work)

    def _check_units(self, work: FileWork, disk_extents: Sequence[Extent] | None) -> None:
        position = 0
        for ids, sizes in self._units(work):
            unit = CheckUnit(work, position, ids, sizes, disk_extents)
            position += sum(sizes)
            work.waiting += 1
            self._submit(partial(check_unit, self._run, unit), partial(self._settle_unit, unit))
        if position != work.data_size:
            raise IntegrityError("its chunks have another length than it should have", hint="run: ohdiff check")

    def _units(self, work: FileWork) -> Iterator[tuple[list[bytes], list[int]]]:
        ids: list[bytes] = []
        sizes: list[int] = []
        unit_size = 0
        for chunk_id, size in self._run.tree.chunk_list(work.listing.contents[work.row]):
            ids.append(chunk_id)
            sizes.append(size)
            unit_size += size
            if unit_size >= UNIT_SIZE_BYTES:
                yield ids, sizes
                ids, sizes, unit_size = [], [], 0
        if ids:
            yield ids, sizes

    def _disk_extents(self, work: FileWork, item: Existing) -> Sequence[Extent] | None:
        """Where the file has data, if that is not where it should have it."""
        disk_size = item.found.sizes[item.at]
        may_have = may_have_holes(disk_size, item.found.blocks512[item.at])
        if work.layout is None and (self._run.options.sparse or not may_have):
            return None
        with self._run.folders.opened(item.folder) as directory:
            fd = directory.open_file(item.name)
        try:
            present = data_extents(fd, disk_size)
        finally:
            os.close(fd)
        wanted = [(0, work.size)] if work.layout is None else list(work.layout.extents)
        work.has_wrong_holes = present != wanted
        return present if work.has_wrong_holes else None

    def _settle_unit(self, unit: CheckUnit, wrong: list[int] | OSError) -> None:
        work = unit.work
        if work.is_over:
            return
        if isinstance(wrong, OSError):
            if is_refusal(wrong):
                self._files.replace(work)
            else:
                self._done(work, wrong)
            return
        assert work.existing is not None, "only existing files are checked"
        if wrong and self._must_replace(work.existing):
            self._files.replace(work)
            return
        starts = _starts(unit)
        for number in wrong:
            self._files.need(work, starts[number], unit.sizes[number], unit.ids[number])
        self._done(work)
        self._report.tick()

    def _done(self, work: FileWork, error: Problem | None = None) -> None:
        is_equal = work.waiting == 1 and not work.is_changed and not (work.error or error)
        if is_equal and work.existing is not None:
            self._files.untrack(work)
            self._keep(work.existing)
        else:
            self._files.done(work, error=error)

    def _must_replace(self, item: Existing) -> bool:
        """Whether rewriting it in place would change another name's data, or is not allowed."""
        found, at = item.found, item.at
        return found.link_counts[at] > 1 or not self._run.wanted.may_write(found.modes[at], found.uids[at])

    def _trust(self, item: Existing) -> None:
        """A file that is taken for equal by its size and time."""
        if self._run.options.verify and not self._run.options.dry_run:
            self._submit(partial(read_back, self._run, _work(item), item.name), partial(self._verified, item))
        else:
            self._keep(item)

    def _verified(self, item: Existing, is_same: bool | Problem) -> None:
        if is_same is True:
            self._keep(item)
            return
        if is_same is False:
            self._report.read_back_differs(item.folder, item.name, was_written=False)
        else:
            self._report.failed(item.folder, item.name, is_same)
        self._end(item, is_good=False)

    def _keep(self, item: Existing) -> None:
        """Its data is right; its attributes may not be."""
        listing, row = item.listing, item.row
        found, at = item.found, item.at
        is_dressed = not self._run.wanted.differ(listing, row, found, at)
        if not is_dressed and found.link_counts[at] > 1 and item.group is None:
            # Its other names are none of the snapshot's, and keep their attributes.
            self._files.replace(_work(item))
            return
        is_good = True
        if not is_dressed and not self._run.options.dry_run:
            is_good = self._files.dress_existing(item.folder, listing, row, item.group, found.flags[at])
        if is_good:
            self._report.moved(kept=_work(item).data_size)
            self._report.file_done("unchanged" if is_dressed else "metadata", item.folder, item.name)
        self._end(item, is_good=is_good)

    def _end(self, item: Existing, *, is_good: bool) -> None:
        if item.group is not None:
            self._settle_links(item.group, is_good)
        self._release(item.folder)

    def _submit(self, job: Callable[[], object], then: Callable[..., None]) -> None:
        self._run.crew.wait_until(_CHECKS_WAITING_MAX)
        self._run.crew.submit(job, then)


def _work(item: Existing) -> FileWork:
    return FileWork(item.folder, item.listing, item.row, "in place", item.group, item)


def _starts(unit: CheckUnit) -> list[int]:
    starts = []
    position = unit.position
    for size in unit.sizes:
        starts.append(position)
        position += size
    return starts
