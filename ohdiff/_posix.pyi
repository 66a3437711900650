"""Native batch file access: many system calls in one call, with the interpreter's lock released meanwhile.

Everything is relative to open directories (`dir_fd`) and never follows a symlink. A name is one path component as
bytes, other than ".."; `b"."` is the directory itself. Times are signed nanoseconds since 1970, clamped to 64 bits.
Wrong arguments raise ValueError (lengths, ranges, names) or TypeError before any system call; a system error
raises OSError with its errno, except where a call reports it per file.
"""

from typing_extensions import Buffer

TIME_UNKNOWN: int
"""The birth time of an entry whose file system keeps none."""

def list_names(dir_fd: int) -> list[bytes]:
    """All names in a directory, sorted by their bytes, without "." and "..".

    Uses the file offset that `dir_fd` shares with its duplicates: one listing of it at a time.
    """

def stat_columns(
    dir_fd: int, names: list[bytes], with_xattrs: bool
) -> tuple[
    list[bytes],
    list[int],
    list[int],
    list[int],
    list[int],
    list[int],
    list[int],
    list[int],
    list[int],
    list[int],
    list[int],
    list[int],
    list[int],
    list[int],
    dict[int, bytes],
    dict[int, list[tuple[bytes, bytes]]],
    list[tuple[bytes, int, str]],
]:
    """The status of many entries of one directory; `ohdiff.filesystem.EntryColumns` names the fields.

    Returns
    -------
    names, modes, uids, gids, sizes, mtimes_ns, ctimes_ns, btimes_ns, inodes, devices, link_counts, rdevs, flags,
    blocks512 : parallel columns, without the entries that failed.
    targets : row -> text of a symlink.
    xattrs : row -> its extended attributes sorted by name; rows without any are absent.
    errors : (name, errno, what) with what "stat", "readlink" or "xattr". An entry whose xattrs alone could not be
        read keeps its row, unless it had vanished.
    """

def stat_fd(
    fd: int, with_xattrs: bool = False
) -> tuple[int, int, int, int, int, int, int, int, int, int, int, int, int, list[tuple[bytes, bytes]]]:
    """The same fields of one open file, in the same order, its xattrs last; `FileStatus` names them."""

def read_xattrs(
    dir_fd: int, names: list[bytes], way: str = "auto"
) -> tuple[dict[int, list[tuple[bytes, bytes]]], list[tuple[bytes, int, str]]]:
    """The xattrs of many entries, as in `stat_columns`, with the position in `names` as the row.

    A file whose ctime is unchanged has unchanged xattrs, so a second backup need ask for the changed files only.

    Parameters
    ----------
    way : "at" (Linux 6.13), "proc", "descriptor" (files and directories that can be opened), or "auto".
    """

def replace_xattrs(
    dir_fd: int, name: bytes, xattrs: list[tuple[bytes, bytes]], way: str = "auto"
) -> list[tuple[bytes, int]]:
    """Make an entry's xattrs exactly these, ACLs included; labels that the system itself keeps stay.

    Returns
    -------
    (xattr name, errno) for each that could not be set or removed; the name is empty if none could be read.
    """

def read_files(
    dir_fds: list[int],
    names: list[bytes],
    expected: tuple[list[int], list[int], list[int], list[int]],
    buffer: Buffer,
    start: int = 0,
    leaves_cache: bool = False,
) -> list[int]:
    """Read many regular files back to back into a buffer, and check that each is the file that was listed.

    Parameters
    ----------
    dir_fds, names : the directory and the name of each file.
    expected : their sizes, mtimes_ns, ctimes_ns and inodes as listed.
    buffer : writable host memory of the caller.
    start : position of the first file; each next one follows at its predecessor's position plus expected size,
        whether or not that one could be read.
    leaves_cache : whether the page cache is to stay as it was: what was not in it goes again, what was stays. Needs
        Linux 6.14 and a file system that reads uncached, or Linux 6.5; elsewhere it changes nothing.

    Returns
    -------
    For each file 0 (read whole and unchanged), -1 (it is another file, or changed before or while it was read: its
    bytes must not be used), or the errno of a failed call (ELOOP where a symlink has taken its place).
    """

def create_files(
    dir_fds: list[int],
    names: list[bytes],
    data: Buffer,
    starts: list[int],
    sizes: list[int],
    modes: list[int],
    uids: list[int] | None,
    gids: list[int] | None,
    mtimes_ns: list[int],
) -> list[int]:
    """Create many regular files, each with its content, owner, permission bits and times (atime = mtime).

    An ACL that the directory hands down is taken off again. Nothing that exists is opened or replaced (EEXIST), and
    nothing is flushed to the disk.

    Parameters
    ----------
    data : host memory holding the contents; file i is `data[starts[i] : starts[i] + sizes[i]]`.
    modes : permission bits with set-id and sticky bits; the file type is ignored.
    uids, gids : both lists, or both None to leave the files to the caller's user.

    Returns
    -------
    For each file 0, -1 (whole, but its owner was refused: its set-id bits are then left off), or the errno of a
    failed call, after which the file does not exist unless it did before.
    """

def dress_plain(dir_fd: int, name: bytes, mode: int, mtime_ns: int, uid: int, gid: int) -> bool:
    """Give an entry its owner, times (atime = mtime) and mode, if that is all there is to it.

    Parameters
    ----------
    mode : full st_mode; nothing is done to an entry of another type.
    uid, gid : -1 leaves it.

    Returns
    -------
    False if something failed, or if the entry has flags or xattrs, which are left as they are. Some may be done then.
    """

def set_times(dir_fd: int, name: bytes, mtime_ns: int) -> None:
    """Set the modification and access time of an entry, a symlink's own included."""

def set_mode(dir_fd: int, name: bytes, mode: int) -> None:
    """Set the permission bits of an entry; OSError(EOPNOTSUPP) for a symlink."""

def get_flags(fd: int) -> int:
    """The flags that chattr sets on an open file, in the bits of `stat_columns`; OSError(ENOTTY) if it has none."""

def set_flags(fd: int, flags: int) -> None:
    """Set exactly these flags, leaving those that `stat_columns` does not report as they are."""

def data_extents(fd: int, size: int) -> list[tuple[int, int]]:
    """The half-open ranges of an open file's first `size` bytes that hold data; the rest are holes.

    One range over everything where the file system does not know holes.
    """

def punch_hole(fd: int, offset: int, size: int) -> None:
    """Turn a range into a hole; the file's size stays. OSError(EOPNOTSUPP) where the file system cannot."""

def compare_and_write(fd: int, offset: int, data: Buffer) -> int:
    """Write the pieces (128 KiB) of `data` that the file does not hold already; the number of bytes written."""

def sync_filesystem(fd: int) -> None:
    """Flush the whole file system of an open file to its device."""

class Breaks:
    """While entered, the calling thread takes breaks wherever it is, brought by a signal; `set_breaks` says when.

    One object serves all threads, and may be entered again within. Without breaks entering costs next to nothing.
    Linux only; elsewhere it does nothing, and neither do the functions below.
    """

    def __init__(self) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

def set_breaks(work_us: float, short_us: float, long_us: float) -> None:
    """Break for `short_us` after `work_us` of work, all threads for `long_us` if others were met; 0 of work: never."""

def count_breaks() -> tuple[int, int]:
    """How many breaks the process has taken, and in how many of them others were met."""

def break_if_due() -> None:
    """Take a break if this thread has worked for long enough; the lock is released meanwhile."""
