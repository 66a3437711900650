"""The names that objects may have, and nothing else that a file system would take for a path."""

from __future__ import annotations

import re
from typing import Final

CONFIG: Final = "config"
KEYS: Final = "keys"
PACKS: Final = "packs"
FOLDERS: Final = (KEYS, PACKS, "index", "snapshots")
_NAME: Final = re.compile(rf"{CONFIG}|(?:{'|'.join(FOLDERS)})/[0-9a-f]{{16,64}}")


def is_object_name(name: str) -> bool:
    """Whether `name` can be an object's."""
    return _NAME.fullmatch(name) is not None


def check_name(name: str) -> None:
    """Raise ValueError unless `name` can be an object's."""
    if not is_object_name(name):
        raise ValueError(f"not the name of an object: {name!r}")


def check_folder(folder: str) -> None:
    """Raise ValueError unless `folder` is one of the repository's."""
    if folder not in FOLDERS:
        raise ValueError(f"not a folder of the repository: {folder!r}")


def check_in_folder(name: str, folder: str) -> None:
    """Raise ValueError unless `name` is an object's in `folder`."""
    check_name(name)
    if name.partition("/")[0] != folder or name == CONFIG:
        raise ValueError(f"{name!r} is not in the folder {folder!r}")


def check_content_name(name: str) -> None:
    """Raise ValueError unless the name can be decided by the object's bytes, as that of `config` cannot."""
    check_name(name)
    if name == CONFIG:
        raise ValueError("config has no content name: it is claimed with write_new")


def check_range(offset: int, size: int | None) -> None:
    """Raise ValueError for a range that no object can have."""
    if offset < 0 or (size is not None and size < 0):
        raise ValueError(f"not a range: offset {offset}, size {size}")
