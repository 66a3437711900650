"""Entries that stand for nothing on disk: a stream or tensors as a file, and the folders that lead to it."""

from __future__ import annotations

import os

from ohdiff_format.tree import TIME_UNKNOWN, Content, Listing


def made_entry(name: bytes, mode: int, size: int, time_ns: int, content: Content) -> Listing:
    """The listing of one entry of ours, of a time; `mode` with its type."""
    return Listing(
        names=[name],
        modes=[mode],
        uids=[os.geteuid()],
        gids=[os.getegid()],
        sizes=[size],
        mtimes=[time_ns],
        ctimes=[time_ns],
        btimes=[TIME_UNKNOWN],
        inodes=[0],
        devices=[0],
        link_counts=[1],
        rdevs=[0],
        flags=[0],
        marks=[0],
        contents=[content],
    )
