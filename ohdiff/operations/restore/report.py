"""What a restore tells: counts, items, errors, and what is said once instead of for every file.

Used by the main thread only. Paths are built when somebody wants them.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from ohdiff.errors import IntegrityError, OhdiffError, TargetError

from ..observer import Observer, Progress
from .folders import Folder
from .options import Action, RestoreResult, Tally

Failure = tuple[str, OSError]

_TARGET_IS_UNUSABLE: Final = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
_CANNOT_KEEP: Final = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY}
_HINTS: Final = {
    errno.ENOSPC: "make room and run the same restore again: what is in place already is kept",
    errno.EDQUOT: "make room within your quota and run the same restore again: what is in place already is kept",
    errno.EROFS: "the target is mounted read-only: choose another, or remount it",
    errno.EACCES: "choose a target that you may write to, or run as its owner",
    errno.EPERM: "run as the entry's owner, or as root",
    errno.EISDIR: "use --delete to remove directories that are in the way",
    errno.EBUSY: "unmount what is mounted there first",
}


class TargetUnusableError(Exception):
    """The target cannot take anything more; raised once, after it has been reported."""


class RestoreReport:
    """Gathers the result, and passes it on to the observer.

    Parameters
    ----------
    source : path of the target's root in the snapshot, b"" for the snapshot's own root.
    target : the target's root as the user named it.
    """

    def __init__(self, observer: Observer, source: bytes, target: bytes, progress: Progress) -> None:
        self.result = RestoreResult()
        self._observer = observer
        self._source = source
        self._target = target.rstrip(b"/")
        self._progress = progress
        self._said: set[object] = set()
        self._is_ending = False

    def end(self) -> None:
        """The restore is being cut short: whatever fails from now on does not end it once more."""
        self._is_ending = True

    def source_path(self, folder: Folder, name: bytes) -> bytes:
        """An entry's path in the snapshot."""
        return self._source + folder.path + (b"/" + name if name else b"")

    def did(self, tally: Tally, action: Action, folder: Folder, name: bytes) -> None:
        """One entry is done; an empty name is the directory itself."""
        tally.add(action)
        if self._observer.wants_items:
            self._observer.item(action, self.source_path(folder, name) or b"/")

    def file_done(self, action: Action, folder: Folder, name: bytes) -> None:
        """One regular file is done."""
        self.did(self.result.files, action, folder, name)
        self._progress.files_done += 1

    def files_restored(self, folder: Folder, names: list[bytes]) -> None:
        """Many new files of one directory are done."""
        self.result.files.restored += len(names)
        self._progress.files_done += len(names)
        if self._observer.wants_items:
            for name in names:
                self._observer.item("restored", self.source_path(folder, name))

    def moved(self, *, written: int = 0, kept: int = 0) -> None:
        """Data was written, or found in place."""
        self.result.bytes_written += written
        self.result.bytes_kept += kept
        self._progress.bytes_done += written + kept

    def tick(self) -> None:
        """Let the observer look at the progress."""
        self._observer.progress(self._progress)

    def note_once(self, key: object, message: str) -> None:
        """Say something once, whatever it is about the thousandth time."""
        if key not in self._said:
            self._said.add(key)
            self._observer.note(message)

    def target_failed(self, folder: Folder, name: bytes, error: OSError, what: str = "") -> None:
        """One entry of the target could not be written or read.

        Raises
        ------
        TargetUnusableError : the first time that the reason is one that all entries would meet; later it is not
            even told of any more.
        """
        code = error.errno or 0
        is_fatal = code in _TARGET_IS_UNUSABLE
        if is_fatal and self.result.is_stopped_early:
            return
        reason = os.strerror(code) if code else str(error)
        path = self._target_path(folder, name)
        self._collect(TargetError, path, f"{what}: {reason}" if what else reason, _HINTS.get(code, ""))
        if is_fatal:
            self.result.is_stopped_early = True
            if not self._is_ending:
                raise TargetUnusableError

    def failed(self, folder: Folder, name: bytes, error: OhdiffError | OSError) -> None:
        """One entry could not be restored, be it for the target or for the repository."""
        if isinstance(error, OSError):
            self.target_failed(folder, name, error)
        else:
            self._collect(type(error), self.source_path(folder, name), error.message, error.hint)

    def left_incomplete(self, folder: Folder, name: bytes) -> None:
        """A file that was there before has been rewritten in part."""
        hint = "run the same restore again to finish it"
        self._collect(TargetError, self._target_path(folder, name), "rewritten in part only", hint)

    def read_back_differs(self, folder: Folder, name: bytes, *, was_written: bool) -> None:
        """What is on the target is not what the snapshot says."""
        path = self._target_path(folder, name)
        if was_written:
            hint = "check the target's disk and this machine's memory"
            self._collect(IntegrityError, path, "reads back other data than was written", hint)
        else:
            reason = "has other data, though its size and time are right"
            self._collect(TargetError, path, reason, "use --overwrite always")

    def dressing_failed(self, folder: Folder, name: bytes, failures: list[Failure]) -> None:
        """Some attributes could not be given; what the system or the user cannot do at all is said once."""
        for what, error in failures:
            if what == "owner":
                self.owners_lost()
            elif what in ("xattr", "flags") and error.errno in _CANNOT_KEEP:
                detail = (error.strerror or "").partition(": ")[2].partition(".")[0]
                kind = f"{what} {detail}.*" if detail else what
                self.note_once((kind, error.errno), f"some {kind} could not be set: {os.strerror(error.errno or 0)}")
            else:
                self.target_failed(folder, name, error, what)

    def owners_lost(self) -> None:
        """Some entry belongs to somebody else than it should."""
        self.note_once("owner", "some owners could not be restored: only root can give files to others")

    def _target_path(self, folder: Folder, name: bytes) -> bytes:
        return self._target + folder.path + (b"/" + name if name else b"")

    def _collect(self, kind: type[OhdiffError], path: bytes, reason: str, hint: str) -> None:
        path = path or b"/"
        error = kind(f"{path.decode(errors='backslashreplace')}: {reason}", hint=hint, item=os.fsdecode(path))
        self.result.errors.append(error)
        self._progress.errors += 1
        self._observer.error(error)
