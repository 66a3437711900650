"""Keeps the books of regular files: what each still waits for, how it is begun, finished, or given up.

A new file that cannot be finished is removed; one that is replaced stays the old one until the new one is whole.
Nothing is planned inside of a callback: what becomes due there is queued, and `advance` takes it from the walk's loop,
so that a window is only ever sent from there.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from ohdiff.errors import IntegrityError
from ohdiff.filesystem import DirectoryHandle, apply_attributes, set_layout
from ohdiff_format.tree import Listing

from .check import is_refusal, read_back
from .folders import Folder
from .links import LinkGroup
from .options import Action
from .report import Failure
from .target import put_in_place, temporary_name, unlink_if_there, unlock, without_flags
from .window import Window
from .work import FileWork, Problem, RestoreRun, kept
from .write import Bucket, FileAt, Outcome, take_bucket


class FileBook:
    """All regular files of a restore; used by the main thread only.

    Whoever hands a file over has counted it in its folder's `waiting`; the book releases it.

    Parameters
    ----------
    release : so many things less that a folder waits for.
    settle_links : the first name of a group is finished (True) or has failed.
    """

    def __init__(
        self, run: RestoreRun, release: Callable[[Folder, int], None], settle_links: Callable[[LinkGroup, bool], None]
    ) -> None:
        self._run = run
        self._report = run.report
        self._release = release
        self._settle_links = settle_links
        self._window = Window(run, self)
        self._due: deque[FileWork] = deque()
        self._open: set[FileWork] = set()
        self._late_flags: list[tuple[Folder, Listing, int]] = []

    @property
    def has_due(self) -> bool:
        """Whether anything is waiting for `advance` or `send`."""
        return bool(self._due) or self._window.has_entries

    def take_new_files(self, folder: Folder, listing: Listing, rows: Sequence[int]) -> None:
        """Files of one directory that are not there, and that have no other names."""
        if self._run.options.dry_run:
            for row in rows:
                self.take_new(folder, listing, row, None, replaces=False)
            return
        folder.is_touched = True
        contents, sizes, extents = listing.contents, listing.sizes, listing.extents
        plain = []
        for row in rows:
            content = contents[row]
            if content.depth or row in extents:
                self.queue(FileWork(folder, listing, row, "new", None, None))
            elif sum(content.sizes) != sizes[row]:
                self.missing(folder, listing.names[row], _wrong_length())
            else:
                plain.append(row)
        if plain:
            self._window.add_new_files(folder, listing, plain)

    def take_new(self, folder: Folder, listing: Listing, row: int, group: LinkGroup | None, *, replaces: bool) -> None:
        """A file that is not there, or whose place something else than a file or directory has taken."""
        self.queue(FileWork(folder, listing, row, "replace" if replaces else "new", group, None))

    def queue(self, work: FileWork) -> None:
        """Have all of a file written."""
        if self._run.options.dry_run:
            work.written = work.data_size
            self._report.moved(written=work.data_size)
            self._succeed(work)
        else:
            self._due.append(work)

    def replace(self, work: FileWork) -> None:
        """Give up writing a file in place: write it anew, and rename it over the old one."""
        self._close(work)
        self.queue(FileWork(work.folder, work.listing, work.row, "replace", work.group, work.existing))

    def track(self, work: FileWork) -> None:
        """A file that is being checked, of which pieces will be written in place."""
        self._open.add(work)

    def untrack(self, work: FileWork) -> None:
        """Nothing of a file needs writing after all."""
        self._close(work)

    def need(self, work: FileWork, position: int, size: int, chunk_id: bytes) -> None:
        """Have one chunk of a file written."""
        work.is_changed = True
        if self._run.options.dry_run:
            work.written += size
            self._report.moved(written=size)
        else:
            work.waiting += 1
            self._window.add_chunk(work, position, size, chunk_id)

    def done(self, work: FileWork, count: int = 1, written: int = 0, error: Problem | None = None) -> None:
        """Some of what a file waits for is done."""
        if work.is_over:
            return
        work.written += written
        work.waiting -= count
        work.error = work.error or error
        self._report.moved(written=written)
        if work.waiting == 0:
            self._finish(work)

    def advance(self) -> None:
        """Take in what is finished, and plan what has become due."""
        self._run.crew.pump()
        self._plan_due()
        if self._window.is_full:
            self._send(is_last=False)

    def send_rest(self) -> None:
        """Hand over what no full window has been made of."""
        if self.has_due:
            self._send(is_last=True)

    def set_late_flags(self) -> None:
        """Set the flags that would have kept files from being linked to."""
        for folder, listing, row in self._late_flags:
            attributes = self._run.wanted.attributes(listing, row)
            self.dress(folder, listing.names[row], partial(self._run.entries.dress, attributes=attributes))
            self._release(folder, 1)
        self._late_flags.clear()

    def abandon(self, *, completes: bool) -> None:
        """Cut the restore short: no file is left half-written that was whole or was not there.

        Parameters
        ----------
        completes : write what is missing of files that are being rewritten in place; without it they are reported.
        """
        self._report.end()
        self._run.crew.stop()
        if completes:
            self._complete_in_place()
        for work in list(self._open):
            if not work.is_begun:
                continue
            if work.way == "in place":
                self._report.left_incomplete(work.folder, work.name)
            else:
                self._remove_written(work)
        self._open.clear()

    def begin(self, work: FileWork) -> None:
        """Make the file that gets the first piece, or open up the one that is there."""
        work.is_begun = True
        if work.is_over:
            return
        work.folder.is_touched = True
        try:
            with self._run.folders.opened(work.folder) as directory:
                _begin(work, directory)
        except OSError as error:
            if work.way == "in place" and is_refusal(error):
                self.replace(work)
            else:
                self._give_up(work, error)

    def scattered(self, folder: Folder, listing: Listing, row: int) -> None:
        """A new file needs to be written piece by piece."""
        self.queue(FileWork(folder, listing, row, "new", None, None))

    def missing(self, folder: Folder, name: bytes, error: IntegrityError) -> None:
        """A new file cannot be restored."""
        self._report.failed(folder, name, error)
        self._release(folder, 1)

    def lacks(self, work: FileWork, error: IntegrityError) -> None:
        """A piece of a file cannot be restored."""
        self.done(work, error=error)

    def settle(self, bucket: Bucket, outcome: Outcome) -> None:
        """Enter what became of a bucket."""
        if outcome.is_owner_refused:
            self._report.owners_lost()
        for file, failures in outcome.failures:
            self._report.dressing_failed(file.folder, file.name, failures)
        if bucket.wholes:
            self._settle_wholes(bucket, outcome)
        for work, count, written, error in outcome.pieces:
            self.done(work, count, written, error)
        self._report.tick()

    def dress(self, folder: Folder, name: bytes, dress: Callable[[Folder, bytes], list[Failure]]) -> bool:
        """Give a file its attributes, and report what cannot be; False if nothing could be done with it."""
        try:
            failures = dress(folder, name)
        except OSError as error:
            self._report.failed(folder, name, error)
            return False
        self._report.dressing_failed(folder, name, failures)
        return True

    def dress_existing(self, folder: Folder, listing: Listing, row: int, group: LinkGroup | None, flags: int) -> bool:
        """Give a file that is in place its attributes; flags of a linked one come at the end.

        Parameters
        ----------
        flags : those that it has.
        """
        attributes = self._run.wanted.attributes(listing, row)
        if group is not None and attributes.flags:
            attributes = without_flags(attributes)
            self._late_flags.append((folder, listing, row))
            folder.waiting += 1
        dress = partial(self._run.entries.dress, attributes=attributes, old_flags=flags)
        return self.dress(folder, listing.names[row], dress)

    def _settle_wholes(self, bucket: Bucket, outcome: Outcome) -> None:
        for file, error in outcome.errors:
            self._report.failed(file.folder, file.name, error)
        for file in outcome.misread:
            self._remove_misread(file)
        bad = {(id(file.listing), file.row) for file in [*(file for file, _ in outcome.errors), *outcome.misread]}
        written = 0
        for folder, listing, rows, _ in bucket.wholes:
            good = rows if not bad else [row for row in rows if (id(listing), row) not in bad]
            sizes = listing.sizes
            written += sum([sizes[row] for row in good])
            self._report.files_restored(folder, [listing.names[row] for row in good])
            self._release(folder, len(rows))
        self._report.moved(written=written)

    def _remove_misread(self, file: FileAt) -> None:
        with self._run.folders.opened(file.folder) as directory:
            unlink_if_there(directory, file.name)
        self._report.read_back_differs(file.folder, file.name, was_written=True)

    def _send(self, *, is_last: bool) -> None:
        # Files that turn out to lie in several blocks belong to the same window, so that it reads each block once.
        self._window.place()
        self._plan_due()
        self._window.send(is_last=is_last)

    def _plan_due(self) -> None:
        while self._due:
            self._plan(self._due.popleft())

    def _plan(self, work: FileWork) -> None:
        """Have every chunk of a file written; called from the walk's loop only."""
        self._open.add(work)
        if work.way == "replace":
            work.written_name = temporary_name()
        position = 0
        try:
            for chunk_id, size in self._run.tree.chunk_list(work.listing.contents[work.row]):
                self.need(work, position, size, chunk_id)
                position += size
                if self._window.is_full:
                    self._window.send()
                if work.is_over:
                    return
            if position != work.data_size:
                raise _wrong_length()
        except IntegrityError as error:
            work.error = work.error or kept(error)
        self.done(work)

    def _finish(self, work: FileWork) -> None:
        if work.error is None and work.is_changed and not work.is_begun and not self._run.options.dry_run:
            self.begin(work)
            if work.is_over:
                return
        if work.error is not None:
            self._give_up(work, work.error)
        elif self._run.options.verify and work.is_begun:
            job = partial(read_back, self._run, work, work.written_name)
            self._run.crew.submit(job, partial(self._verified, work))
        else:
            self._complete(work)

    def _verified(self, work: FileWork, is_same: bool | Problem) -> None:
        if is_same is True:
            self._complete(work)
        elif is_same is False:
            self._report.read_back_differs(work.folder, work.name, was_written=True)
            self._drop(work)
        else:
            self._give_up(work, is_same)

    def _complete(self, work: FileWork) -> None:
        """All data is there: attributes, and the name."""
        if not self._run.options.dry_run:
            try:
                self._report.dressing_failed(work.folder, work.name, self._put_in_place(work))
            except OSError as error:
                self._give_up(work, error)
                return
        self._report.moved(kept=work.data_size - work.written)
        self._succeed(work)

    def _put_in_place(self, work: FileWork) -> list[Failure]:
        attributes = self._run.wanted.attributes(work.listing, work.row)
        if work.group is not None and attributes.flags:
            attributes = without_flags(attributes)
            self._late_flags.append((work.folder, work.listing, work.row))
            work.folder.waiting += 1
        with self._run.folders.opened(work.folder) as directory:
            if work.way == "replace":
                return put_in_place(directory, work.written_name, work.name, attributes, work.old_flags)
            return apply_attributes(directory, work.name, attributes)

    def _succeed(self, work: FileWork) -> None:
        self._close(work)
        action: Action = "restored" if work.way == "new" else "updated"
        self._report.file_done(action, work.folder, work.name)
        if work.group is not None:
            self._settle_links(work.group, True)
        self._release(work.folder, 1)

    def _give_up(self, work: FileWork, error: Problem) -> None:
        self._report.failed(work.folder, work.name, error)
        if work.way == "in place" and work.written:
            self._report.left_incomplete(work.folder, work.name)
        self._drop(work)

    def _drop(self, work: FileWork) -> None:
        self._close(work)
        if work.is_begun and work.way != "in place":
            self._remove_written(work)
        if work.group is not None:
            self._settle_links(work.group, False)
        self._release(work.folder, 1)

    def _close(self, work: FileWork) -> None:
        work.is_over = True
        self._open.discard(work)

    def _remove_written(self, work: FileWork) -> None:
        try:
            with self._run.folders.opened(work.folder) as directory:
                unlink_if_there(directory, work.written_name)
        except OSError as error:
            self._report.failed(work.folder, work.written_name, error)

    def _complete_in_place(self) -> None:
        """Write the rest of what is being rewritten in place, as far as it has been planned."""
        for bucket in self._window.unsettled():
            pieces = [
                piece
                for piece in bucket.pieces
                if piece.work in self._open and piece.work.is_begun and piece.work.way == "in place"
            ]
            if pieces:
                rest = Bucket(bucket.location, pieces=pieces)
                self.settle(rest, take_bucket(self._run, rest)[0])


def _begin(work: FileWork, directory: DirectoryHandle) -> None:
    if work.way == "in place":
        unlock(directory, work.name, work.old_flags)
        fd = directory.open_file_for_update(work.name)
    else:
        fd = directory.create_file(work.written_name)
    try:
        if work.layout is not None:
            set_layout(fd, work.size, work.layout.extents)
        else:
            os.ftruncate(fd, work.size)
    finally:
        os.close(fd)


def _wrong_length() -> IntegrityError:
    return IntegrityError("its chunks have another length than it should have", hint="run: ohdiff check")
