"""What a restore is asked for, and what it answers: options, counts and collected errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from ohdiff.errors import EXIT_DONE, OhdiffError

OverwritePolicy = Literal["always", "if-changed", "if-newer", "never"]
Action = Literal["restored", "updated", "metadata", "unchanged", "skipped", "deleted"]


class PathMatcher(Protocol):
    """Whether a path of the snapshot is meant."""

    def __call__(self, path: bytes, /) -> bool:
        """`path` is absolute in the snapshot."""


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """What to restore, where to, and how.

    Attributes
    ----------
    target : directory that gets the entries; made if it is missing. Links in this path are the user's own.
    source : path in the snapshot: b"" is everything, a directory stands for what is in it, and any other entry is
        restored into the target under its own name.
    overwrite : what becomes of entries that exist: "always" makes them as they were, reading their data to rewrite
        what differs; "if-changed" trusts files of the same size and mtime; "if-newer" leaves entries that are not
        older than the snapshot's; "never" leaves all.
    delete : remove entries of restored directories that the snapshot does not have, and directories in the way.
    dry_run : tell what would be done, and touch nothing.
    verify : read back what was written, and compare.
    sparse : make holes of long runs of zeros too; the holes of the snapshot are made in any case.
    include, exclude : entries to restore and to leave out, each with all that is below; None includes everything and
        excludes nothing.
    restore_owner : give entries their owners; an ordinary user can only give their own files their own groups.
    workers : background threads.
    """

    target: bytes
    source: bytes = b""
    overwrite: OverwritePolicy = "always"
    delete: bool = False
    dry_run: bool = False
    verify: bool = False
    sparse: bool = False
    include: PathMatcher | None = None
    exclude: PathMatcher | None = None
    restore_owner: bool = True
    workers: int = 2


@dataclass(slots=True)
class Tally:
    """How many entries of one kind ended how.

    Attributes
    ----------
    restored : made anew. updated : content or type was made right. metadata : only attributes were.
    unchanged : all was right already. skipped : left as it is by the overwrite policy. deleted : removed.
    """

    restored: int = 0
    updated: int = 0
    metadata: int = 0
    unchanged: int = 0
    skipped: int = 0
    deleted: int = 0

    def add(self, action: Action, count: int = 1) -> None:
        """Count entries."""
        setattr(self, action, getattr(self, action) + count)


@dataclass(slots=True)
class RestoreResult:
    """What a restore did.

    Attributes
    ----------
    files, directories, others : regular files, directories, and symlinks, devices, FIFOs and sockets.
    hard_links : further names of a file that was restored under its first.
    bytes_written, bytes_kept : data written, and data that was there already.
    errors : TargetError for entries that could not be written, IntegrityError for damaged data; the rest was restored.
    is_stopped_early : whether the target could not take anything more (full, or read-only).
    """

    files: Tally = field(default_factory=Tally)
    directories: Tally = field(default_factory=Tally)
    others: Tally = field(default_factory=Tally)
    hard_links: Tally = field(default_factory=Tally)
    bytes_written: int = 0
    bytes_kept: int = 0
    errors: list[OhdiffError] = field(default_factory=list)
    is_stopped_early: bool = False

    @property
    def exit_code(self) -> int:
        """0, or that of the gravest error."""
        return max((error.exit_code for error in self.errors), default=EXIT_DONE)
