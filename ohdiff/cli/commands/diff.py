"""ohdiff diff: compare snapshots and folders."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from ohdiff.chunking.engine import Engine
from ohdiff.errors import EXIT_DONE, EXIT_FAILED, EXIT_PARTIAL, NoSnapshotError, OhdiffError, UsageError
from ohdiff.filesystem import DirectoryHandle
from ohdiff.operations.diff import KINDS, Change, DiffResult, diff
from ohdiff.operations.diff_content import content_change
from ohdiff.operations.diff_sides import Directory, SnapshotDirectory, open_folder
from ohdiff.operations.observer import Observer
from ohdiff.operations.source_paths import resolve_path
from ohdiff.operations.source_rules import KeepAll
from ohdiff.operations.tree_reader import Entry
from ohdiff.repository.snapshots import StoredSnapshot, find_snapshot

from ..access import Access, opened
from ..engines import engine_without_repository
from ..progress import reporting
from ..selection import clean_path, split_selector
from ..shared import Output, engine_options, shared
from ..tensors import tensor_lines, tensors_fields
from ..text import counted, format_size, path_fields, shown

_LETTERS: Final = {"added": "+", "removed": "-", "modified": "M", "type": "T", "metadata": "U", "moved": "R"}


@dataclass(frozen=True, slots=True)
class Side:
    """What the user wants compared: a folder on disk, or a path in a snapshot."""

    folder: bytes | None = None
    stored: StoredSnapshot | None = None
    path: bytes = b""


@click.command("diff")
@click.argument("left", metavar="A")
@click.argument("right", metavar="B")
@click.argument("path", required=False, metavar="[PATH]")
@click.option("--stat", "is_stat", is_flag=True, help="Only the statistics.")
@click.option("--metadata", "with_metadata", is_flag=True, help="Show entries of which only metadata changed, too.")
@click.option("--content", "with_content", is_flag=True, help="Show what changed inside: lines, tensors, bytes.")
@click.option("--exit-code", "tells_by_code", is_flag=True, help="Exit with 1 if there are differences.")
@engine_options
@shared()
def diff_command(
    output: Output,
    left: str,
    right: str,
    path: str | None,
    is_stat: bool,
    with_metadata: bool,
    with_content: bool,
    tells_by_code: bool,
    engine_name: str,
    kernel: str,
) -> int:
    """Compare two states, from A to B; with PATH, only the folder or file at this path in both.

    Each is a snapshot (latest, latest~N, an id's first digits), with :/sub/path if only a part is meant, or a folder
    on disk: dir:PATH, or any path with a slash that exists. Two folders need no repository.

    + added, - removed, M modified, T other type, U only metadata, R moved from elsewhere.
    """
    with (
        _engine_and_sides(output, (left, right), engine_name, kernel) as (access, engine, sides),
        reporting(output, "diff") as reporter,
    ):
        roots = _roots(access, engine, sides, path, reporter)
        result = diff(*roots, with_metadata=with_metadata)
        if not is_stat:
            for change in result.changes:
                _show(output, change, with_content)
        _show_statistics(output, result, with_metadata)
    if tells_by_code and result.changes:
        return EXIT_FAILED
    return EXIT_PARTIAL if reporter.error_count else EXIT_DONE


@contextmanager
def _engine_and_sides(
    output: Output, texts: tuple[str, str], engine_name: str, kernel: str
) -> Iterator[tuple[Access | None, Engine, list[Side]]]:
    folders = [_folder(text) for text in texts]
    if all(folder is not None for folder in folders):
        yield None, engine_without_repository(engine_name, kernel).engine, [Side(folder=folder) for folder in folders]
        return
    with opened(output) as access:
        sides = [
            _snapshot_side(access, text) if folder is None else Side(folder=folder)
            for text, folder in zip(texts, folders, strict=True)
        ]
        yield access, access.engine(engine_name, kernel).engine, sides


def _folder(text: str) -> bytes | None:
    """The folder that an argument means, or None if it means a snapshot."""
    if text.startswith("dir:"):
        return resolve_path(text[4:])
    looks_like_path = "/" in text or text in (".", "..")
    return resolve_path(text) if looks_like_path and Path(text).exists() else None


def _snapshot_side(access: Access, text: str) -> Side:
    selector, path = split_selector(text)
    if "/" in selector:
        raise UsageError(f"there is no folder {text}", hint="name a snapshot, or a folder that exists")
    try:
        return Side(stored=find_snapshot(access.repository, selector), path=path)
    except OhdiffError as error:
        if Path(text).is_dir():
            error.hint = f"for the folder, write ./{text} or dir:{text}"
        raise


def _roots(
    access: Access | None, engine: Engine, sides: list[Side], path: str | None, observer: Observer
) -> list[Directory]:
    """The directories to compare; both say the same path, so that changes read as one tree.

    Where the path leads to a file on either side, they are the folders that it is in, and only its name counts.
    """
    inner = b"" if path is None else clean_path(path)
    paths = [_path(access, side, other) + inner for side, other in zip(sides, reversed(sides), strict=True)]
    shared_path = paths[0] if paths[0] == paths[1] else inner
    only = _file_name(access, sides, paths)
    if only:
        paths = [side_path.removesuffix(b"/" + only) for side_path in paths]
        shared_path = shared_path.removesuffix(b"/" + only)
    roots: list[Directory] = []
    for side, side_path in zip(sides, paths, strict=True):
        if side.stored is None:
            roots.append(_open_folder(side_path, shared_path, engine, observer, only))
        else:
            assert access is not None
            content, _ = access.tree.directory(side.stored.root, side_path)
            roots.append(SnapshotDirectory(access.tree, content, shared_path, only))
    return roots


def _file_name(access: Access | None, sides: list[Side], paths: list[bytes]) -> bytes:
    """The name that both paths end with, if one leads to something else than a folder; b"" if folders are meant."""
    names = {path.rpartition(b"/")[2] for path in paths}
    kinds = [_is_folder(access, side, path) for side, path in zip(sides, paths, strict=True)]
    return names.pop() if len(names) == 1 and False in kinds else b""


def _is_folder(access: Access | None, side: Side, path: bytes) -> bool | None:
    """Whether a path leads to a folder; None if there is nothing."""
    if side.stored is None:
        return _is_folder_on_disk(path or b"/")
    assert access is not None
    try:
        entry = access.tree.find(side.stored.root, path)
    except NoSnapshotError:
        return None
    return entry is None or entry.is_directory


def _is_folder_on_disk(path: bytes) -> bool | None:
    """As `_is_folder`; a link is followed, as it is where a folder is compared."""
    try:
        return stat.S_ISDIR(Path(os.fsdecode(path)).stat().st_mode)
    except OSError:
        return False if os.path.lexists(path) else None


def _path(access: Access | None, side: Side, other: Side) -> bytes:
    """The side's own path; a whole snapshot beside a folder that is in it means that part."""
    if side.folder is not None:
        return b"" if side.folder == b"/" else side.folder
    if side.path or other.folder is None or side.stored is None or access is None:
        return side.path
    try:
        return access.tree.directory(side.stored.root, other.folder)[1]
    except NoSnapshotError:
        return side.path


def _open_folder(path: bytes, shown_path: bytes, engine: Engine, observer: Observer, only: bytes) -> Directory:
    try:
        handle = DirectoryHandle.open_root(path or b"/")
    except OSError as error:
        raise UsageError(
            f"{shown(path)}: {error.strerror}", hint="name a folder that exists", item=shown(path)
        ) from error
    return open_folder(handle, shown_path, engine, KeepAll(), observer, only)


def _show(output: Output, change: Change, with_content: bool) -> None:
    if output.is_json:
        output.record("change", **_fields(change, with_content))
        return
    old = b"" if change.before is None else change.before.path
    source = f"  (from {shown(old)})" if change.kind == "moved" else ""
    details = f"  ({', '.join(change.details)})" if change.kind == "metadata" else ""
    output.line(f"{_LETTERS[change.kind]}    {_name(change)}{source}{details}")
    if with_content and _has_content(change):
        _show_content(output, change)


def _name(change: Change) -> str:
    entry = change.after or change.before
    return shown(change.path) + ("/" if entry is not None and entry.is_directory else "")


def _has_content(change: Change) -> bool:
    return change.kind == "modified" and change.after is not None and change.after.is_file


def _show_content(output: Output, change: Change) -> None:
    content = content_change(change)
    if content.lines is None:
        if content.tensors is not None:
            output.lines(f"     {line}" for line in tensor_lines(content.tensors))
        if content.tensors is None or not content.tensors.changes:
            output.lines(f"     bytes {start:,} to {end:,} are new" for start, end in content.ranges)
        return
    # difflib ends a line as the file does; the file's last line may have no end.
    output.lines(
        shown(line.rstrip("\n").encode(errors="surrogateescape")) if line != "\n" else "" for line in content.lines
    )


def _fields(change: Change, with_content: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {**path_fields(change.path), "modifier": _LETTERS[change.kind], "kind": change.kind}
    if change.details:
        fields["details"] = change.details
    if change.kind == "moved" and change.before is not None:
        fields.update(path_fields(change.before.path, "source"))
    for name, entry in (("before", change.before), ("after", change.after)):
        if entry is not None:
            fields[name] = _entry_fields(entry)
    if with_content and _has_content(change):
        content = content_change(change)
        fields["diff" if content.lines is not None else "ranges"] = content.lines or content.ranges
        if content.tensors is not None:
            fields["tensors"] = tensors_fields(content.tensors)
    return fields


def _entry_fields(entry: Entry) -> dict[str, int]:
    return {"mode": entry.mode, "size": entry.size, "mtime_ns": entry.listing.mtimes[entry.row]}


def _show_statistics(output: Output, result: DiffResult, with_metadata: bool) -> None:
    counts = {kind: result.count(kind) for kind in KINDS if with_metadata or kind != "metadata"}
    if output.is_json:
        output.record(
            "statistics",
            changes=len(result.changes),
            **counts,
            new_bytes=result.new_size,
            shared_bytes=result.shared_size,
            removed_bytes=result.removed_size,
        )
        return
    if output.is_quiet:
        return
    words = ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count) or "nothing"
    output.line(f"{counted(len(result.changes), 'difference')}: {words}")
    output.line(
        f"changed files hold {format_size(result.new_size)} that A does not have, and "
        f"{format_size(result.shared_size)} that it has; {format_size(result.removed_size)} were removed"
    )


__all__ = ["Side", "diff_command"]
