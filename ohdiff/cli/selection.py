"""Which snapshot, and which path in it: `latest`, `latest~N`, an id prefix, each with `:/sub/path`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from ohdiff.errors import EXIT_DONE, EXIT_INTEGRITY
from ohdiff.operations.source_paths import resolve_path
from ohdiff.repository.snapshots import SnapshotFilter, SnapshotList, StoredSnapshot, find_snapshot, read_snapshots

from .access import Access
from .output import Output


@dataclass(frozen=True, slots=True)
class Selection:
    """A snapshot and an absolute path in it, b"" for all."""

    stored: StoredSnapshot
    path: bytes


def snapshot_filter(hosts: Sequence[str], tags: Sequence[str], paths: Sequence[str]) -> SnapshotFilter:
    """The filter that --host, --tag and --path ask for; a tag option may hold several, separated by commas."""
    return SnapshotFilter(tuple(hosts), split_tags(tags), tuple(resolve_path(path) for path in paths))


def selected(access: Access, selectors: Sequence[str], accept: SnapshotFilter) -> SnapshotList:
    """The snapshots that are named, or all that pass."""
    if selectors:
        return SnapshotList([find_snapshot(access.repository, selector, accept) for selector in selectors])
    return read_snapshots(access.repository, accept)


def split_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """Tags, each once and in order, out of options that may hold several separated by commas."""
    return tuple(dict.fromkeys(part for tag in tags for part in tag.split(",") if part))


def split_selector(text: str) -> tuple[str, bytes]:
    """The snapshot and the path that `SNAPSHOT:PATH` means; the path is b"" or begins with a slash."""
    selector, _, path = text.partition(":")
    return selector, clean_path(path)


def clean_path(path: str | bytes) -> bytes:
    """A path in a snapshot: absolute, without odd slashes and dots; b"" is the root."""
    names = [name for name in os.fsencode(path).split(b"/") if name not in (b"", b".")]
    return b"".join(b"/" + name for name in names)


def tell_damaged(output: Output, listed: SnapshotList, during: str) -> int:
    """Say which snapshot objects are damaged, when the others have been dealt with; returns the exit code."""
    for error in listed.damaged:
        output.error(error, during)
    return EXIT_INTEGRITY if listed.damaged else EXIT_DONE


def select(access: Access, text: str, accept: SnapshotFilter) -> Selection:
    """The snapshot that a user means."""
    selector, path = split_selector(text)
    return Selection(find_snapshot(access.repository, selector, accept), path)
