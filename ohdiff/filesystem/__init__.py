"""Files and directories as the backup sees them: listed, read, created and dressed in batches, links never followed.

Everything starts from a DirectoryHandle, so that a directory swapped for a symlink leads nowhere. What to read or
restore, and what to do about an error, is for operations to say: here, errors are OSError or an errno per file.
"""

from __future__ import annotations

from ohdiff._posix import compare_and_write, create_files, read_files, sync_filesystem
from ohdiff.filesystem.attributes import Attributes, apply_attributes
from ohdiff.filesystem.directory import DirectoryHandle
from ohdiff.filesystem.entries import EntryColumns, FileStatus, Xattrs, read_entries, read_status, read_xattrs
from ohdiff.filesystem.holes import data_extents, may_have_holes, set_layout
from ohdiff.filesystem.nodes import make_link, make_node

__all__ = [
    "Attributes",
    "DirectoryHandle",
    "EntryColumns",
    "FileStatus",
    "Xattrs",
    "apply_attributes",
    "compare_and_write",
    "create_files",
    "data_extents",
    "make_link",
    "make_node",
    "may_have_holes",
    "read_entries",
    "read_files",
    "read_status",
    "read_xattrs",
    "set_layout",
    "sync_filesystem",
]
