"""Changes to single entries of the target: make, replace, remove, dress. Nothing here decides whether to.

Every call is relative to an open directory and follows no symlink. What replaces an entry is made under a temporary
name first and renamed over it, so that a crash leaves the old or the new.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ohdiff._posix import set_flags, set_mode
from ohdiff.filesystem import (
    Attributes,
    DirectoryHandle,
    EntryColumns,
    apply_attributes,
    make_link,
    make_node,
    read_entries,
)
from ohdiff_format.tree import Listing

from .attributes import Wanted
from .folders import Folder, OpenFolders, is_same_mount
from .options import Action
from .report import Failure

TEMPORARY_PREFIX = b".ohdiff-"
_NAMES_PER_LOOK = 2048
# Immutable and append-only, as the system's own tools have them (chattr on Linux, chflags elsewhere).
_FORBIDDING_FLAGS = (
    0x30 if sys.platform == "linux" else stat.UF_IMMUTABLE | stat.UF_APPEND | stat.SF_IMMUTABLE | stat.SF_APPEND
)


def temporary_name() -> bytes:
    """A name that nobody else has."""
    return TEMPORARY_PREFIX + secrets.token_hex(8).encode()


def unlock(directory: DirectoryHandle, name: bytes, flags: int) -> None:
    """Take the flags off an existing entry that forbid changing it; OSError if that is refused."""
    if not flags & _FORBIDDING_FLAGS:
        return
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory.fd)
    try:
        set_flags(fd, flags & ~_FORBIDDING_FLAGS)
    finally:
        os.close(fd)


def without_flags(attributes: Attributes) -> Attributes:
    """The same attributes but for flags, which may forbid the next step."""
    return Attributes(attributes.mode, attributes.mtime_ns, attributes.uid, attributes.gid, attributes.xattrs, None)


def put_in_place(
    directory: DirectoryHandle, temporary: bytes, name: bytes, attributes: Attributes, old_flags: int = 0
) -> list[Failure]:
    """Dress the finished entry `temporary` and rename it over `name`.

    Parameters
    ----------
    old_flags : flags of the entry that is replaced.
    """
    failures = apply_attributes(directory, temporary, without_flags(attributes))
    unlock(directory, name, old_flags)
    os.replace(temporary, name, src_dir_fd=directory.fd, dst_dir_fd=directory.fd)
    if attributes.flags:
        failures += [failure for failure in apply_attributes(directory, name, attributes) if failure[0] == "flags"]
    return failures


@dataclass(frozen=True, slots=True)
class TargetEntries:
    """Makes, replaces and removes entries; OSError when the target refuses."""

    folders: OpenFolders
    wanted: Wanted

    def make_directory(self, folder: Folder) -> None:
        """Make a directory that only its owner can enter until it is finished."""
        assert folder.parent is not None, "the root is there already"
        with self.folders.opened(folder.parent) as parent:
            make_node(parent, folder.name, stat.S_IFDIR)
        folder.parent.is_touched = True

    def put_node(self, folder: Folder, listing: Listing, row: int, *, replaces: bool, old_flags: int) -> list[Failure]:
        """Make a symlink, device, FIFO or socket with all its attributes."""
        name = listing.names[row]
        attributes = self.wanted.attributes(listing, row)

        def make(directory: DirectoryHandle, into: bytes) -> None:
            target = listing.targets.get(row, b"")
            make_node(directory, into, attributes.mode, target=target, rdev=listing.rdevs[row])

        with self.folders.opened(folder) as directory:
            folder.is_touched = True
            if not replaces:
                make(directory, name)
                return apply_attributes(directory, name, attributes)
            return replace_entry(
                directory, make, lambda temporary: put_in_place(directory, temporary, name, attributes, old_flags)
            )

    def put_link(self, folder: Folder, name: bytes, source: Folder, source_name: bytes, *, replaces: bool) -> None:
        """Give the entry `source_name` this name too."""
        with self.folders.opened(source) as source_directory, self.folders.opened(folder) as directory:
            folder.is_touched = True
            if not replaces:
                make_link(directory, name, source_directory, source_name)
                return
            found = read_entries(directory, [name], with_xattrs=False)
            unlock(directory, name, found.flags[0] if found.names else 0)
            replace_entry(
                directory,
                lambda directory, into: make_link(directory, into, source_directory, source_name),
                lambda temporary: os.replace(temporary, name, src_dir_fd=directory.fd, dst_dir_fd=directory.fd),
            )

    def dress(self, folder: Folder, name: bytes, attributes: Attributes, old_flags: int = 0) -> list[Failure]:
        """Give an existing entry its attributes; an empty name is the directory itself."""
        if name:
            with self.folders.opened(folder) as directory:
                return self._dress(directory, name, attributes, old_flags)
        if folder.parent is None:
            with self.folders.opened(folder) as directory:
                return self._dress(directory, b".", attributes, old_flags)
        with self.folders.opened(folder.parent) as directory:
            return self._dress(directory, folder.name, attributes, old_flags)

    def remove(self, folder: Folder, name: bytes) -> None:
        """Remove an entry and, if it is a directory, all that is in it; never what is mounted there."""
        with self.folders.opened(folder) as directory:
            found = read_entries(directory, [name], with_xattrs=False)
            if not found.names:
                return
            folder.is_touched = True
            if not stat.S_ISDIR(found.modes[0]):
                unlock_and_unlink(directory, name, found.flags[0])
                return
        self._remove_tree(Folder(folder, name), found.flags[0])

    def mode(self, folder: Folder, name: bytes) -> int | None:
        """The st_mode of an entry, or None if it is not there."""
        with self.folders.opened(folder) as directory:
            found = _lstat(directory, name)
            return None if found is None else found.st_mode

    def link_action(self, folder: Folder, name: bytes, source: Folder, source_name: bytes) -> Action:
        """What it takes to make `name` a link: "unchanged" if it is one, else "restored" or "updated"."""
        if not (folder.is_present and source.is_present):
            return "restored"
        with self.folders.opened(source) as source_directory, self.folders.opened(folder) as directory:
            found, wanted = _lstat(directory, name), _lstat(source_directory, source_name)
        if found is None:
            return "restored"
        is_same = wanted is not None and (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino)
        return "unchanged" if is_same else "updated"

    def _remove_tree(self, top: Folder, flags: int) -> None:
        stack = [(top, self._contents(top, flags))]
        while stack:
            folder, contents = stack[-1]
            found = next(contents, None)
            if found is not None:
                inner = Folder(folder, found[0])
                stack.append((inner, self._contents(inner, found[1])))
                continue
            stack.pop()
            self.folders.forget(folder)
            assert folder.parent is not None, "the target itself is never removed"
            with self.folders.opened(folder.parent) as parent:
                os.rmdir(folder.name, dir_fd=parent.fd)

    def _contents(self, folder: Folder, flags: int) -> Iterator[tuple[bytes, int]]:
        """Remove what is in a directory but for directories, whose names and flags are given."""
        assert folder.parent is not None, "the target itself is never removed"
        with self.folders.opened(folder.parent) as parent:
            if not self.wanted.is_root:
                make_enterable(parent, folder.name)
            unlock(parent, folder.name, flags)
            with self.folders.opened(folder) as directory:
                if not is_same_mount(parent, directory):
                    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), folder.name)
                names = directory.names()
        for start in range(0, len(names), _NAMES_PER_LOOK):
            with self.folders.opened(folder) as directory:
                found = read_entries(directory, names[start : start + _NAMES_PER_LOOK], with_xattrs=False)
                _unlink_all_but_directories(directory, found)
            for at, mode in enumerate(found.modes):
                if stat.S_ISDIR(mode):
                    yield found.names[at], found.flags[at]

    def _dress(self, directory: DirectoryHandle, name: bytes, attributes: Attributes, old_flags: int) -> list[Failure]:
        try:
            unlock(directory, name, old_flags)
        except OSError as error:
            return [("flags", error)]
        return apply_attributes(directory, name, attributes)


def replace_entry(
    directory: DirectoryHandle,
    make: Callable[[DirectoryHandle, bytes], None],
    finish: Callable[[bytes], list[Failure] | None],
) -> list[Failure]:
    """Make an entry under a temporary name, then finish it, which renames it; on an error nothing is left of it."""
    temporary = temporary_name()
    make(directory, temporary)
    try:
        return finish(temporary) or []
    except BaseException:
        unlink_if_there(directory, temporary)
        raise


def unlink_if_there(directory: DirectoryHandle, name: bytes) -> None:
    """Remove a file, if it is there."""
    try:
        os.unlink(name, dir_fd=directory.fd)
    except FileNotFoundError:
        return


def unlock_and_unlink(directory: DirectoryHandle, name: bytes, flags: int) -> None:
    """Remove an entry that is not a directory."""
    unlock(directory, name, flags)
    unlink_if_there(directory, name)


def _unlink_all_but_directories(directory: DirectoryHandle, found: EntryColumns) -> None:
    for name, code, what in found.errors:
        if code != errno.ENOENT and what == "stat":
            raise OSError(code, os.strerror(code), name)
    for name, mode, flags in zip(found.names, found.modes, found.flags, strict=True):
        if not stat.S_ISDIR(mode):
            unlock_and_unlink(directory, name, flags)


def make_enterable(parent: DirectoryHandle, name: bytes) -> None:
    """Let the owner of a directory list and change it, whatever its mode forbade."""
    mode = os.stat(name, dir_fd=parent.fd, follow_symlinks=False).st_mode
    if stat.S_ISDIR(mode) and mode & stat.S_IRWXU != stat.S_IRWXU:
        set_mode(parent.fd, name, stat.S_IMODE(mode) | stat.S_IRWXU)


def _lstat(directory: DirectoryHandle, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory.fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
