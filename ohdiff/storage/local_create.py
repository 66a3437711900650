"""Making the folders of a local repository, and refusing places that hold anything else."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from ohdiff.errors import RepositoryError, RepositoryExistsError, UsageError

from .names import CONFIG, FOLDERS, KEYS, is_object_name
from .system_calls import SystemCalls
from .temporary import TEMPORARY_FOLDER

_OWN_FOLDERS: Final = (*FOLDERS, TEMPORARY_FOLDER)
# The root of a fresh ext file system is not empty, and a fine place for a repository.
_HARMLESS: Final = frozenset({"lost+found"})


def create_folders(calls: SystemCalls, root: Path) -> None:
    """Make the repository's folder, its folders and what is missing above it. Raises OSError.

    The folders of an interrupted `create` are taken over; anything else that is there is refused before any change.
    The inner folders are synced with the first write, before anything stands in them.
    """
    _make_folder_and_parents(calls, root)
    _refuse_strangers(calls, root)
    for folder in _OWN_FOLDERS:
        with suppress(FileExistsError):
            calls.make_folder(root / folder)


def _make_folder_and_parents(calls: SystemCalls, root: Path) -> None:
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    for folder in reversed(missing):
        with suppress(FileExistsError):
            calls.make_folder(folder, 0o700 if folder == root else 0o777)
        with suppress(PermissionError):  # a folder that may be written but not read cannot be synced
            calls.sync_folder(folder.parent)


def _refuse_strangers(calls: SystemCalls, root: Path) -> None:
    names = {entry.name for entry in calls.scan(root)} - _HARMLESS
    if CONFIG in names:
        raise RepositoryExistsError(
            f"there already is a repository at {root}", hint="use it as it is, or choose another folder", item=str(root)
        )
    if strangers := sorted(names.difference(_OWN_FOLDERS)):
        raise UsageError(
            f"{root} is neither empty nor a repository: it holds {strangers[0]!r}",
            hint="choose a new or an empty folder",
            item=str(root),
        )
    if filled := [name for name in FOLDERS if name in names and _is_in_use(calls, root, name)]:
        raise RepositoryError(
            f"{root} has no config, but objects in {', '.join(filled)}",
            hint="if a repository lost its config, bring it back from a copy; else choose a new or an empty folder",
            item=str(root),
        )


def _is_in_use(calls: SystemCalls, root: Path, folder: str) -> bool:
    """Whether a folder holds what an interrupted `init` does not leave: that is keys, under which nothing is stored."""
    found = [f"{folder}/{entry.name}" for entry in calls.scan(root / folder)]
    return bool(found) if folder != KEYS else not all(map(is_object_name, found))
