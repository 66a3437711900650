"""From what the user typed to a storage: a path, or a URL whose scheme names the kind of storage."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote_to_bytes, urlsplit

from ohdiff.errors import UsageError

from .contract import Storage
from .local import LocalStorage
from .memory import MemoryStorage

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_KNOWN: Final = "a path, local:PATH, file:///PATH, memory:NAME"


def open_storage(url: str, create: bool = False) -> Storage:
    """The storage that `url` names.

    Parameters
    ----------
    url : a path, `local:PATH`, `file:///PATH` (percent-encoded), or `memory:NAME` (shared within the process).
    create : make the place of a new repository, in which `config` is then to be written with `write_new`.

    Raises
    ------
    UsageError
        The URL cannot be understood, or, with `create`, the place holds something else.
    NoRepositoryError
        There is no repository; without `create` only.
    RepositoryExistsError
        There is one; with `create` only.
    StorageError
        The place cannot be used, or whether there is a repository cannot be told.
    """
    scheme, rest = _split(url)
    if scheme == "memory":
        return _memory(url, rest, create)
    path = _path(url, _file_url_path(url) if scheme == "file" else rest)
    return LocalStorage.create(path) if create else LocalStorage.open(path)


def _split(url: str) -> tuple[str, str]:
    match = _SCHEME.fullmatch(url)
    if match is None:
        return "local", url
    scheme = match[1].lower()
    if scheme not in ("local", "file", "memory"):
        raise UsageError(
            f"unknown kind of storage {match[1]!r} in {url!r}; known are {_KNOWN}",
            hint=f"for a folder whose name has a colon, write ./{url} or local:{url}",
            item=url,
        )
    return scheme, match[2]


def _memory(url: str, name: str, create: bool) -> MemoryStorage:
    if not name:
        raise UsageError(f"{url!r} names no storage", hint="write memory:NAME", item=url)
    return MemoryStorage.create(name) if create else MemoryStorage.open(name)


def _file_url_path(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise UsageError(f"{url!r} is no file URL: {error}", hint="write file:///PATH", item=url) from error
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or not parts.path.startswith("/"):
        raise UsageError(
            f"{url!r} names no file of this machine",
            hint="write file:///PATH, with %3F for ? and %23 for #",
            item=url,
        )
    return os.fsdecode(unquote_to_bytes(parts.path))


def _path(url: str, path: str) -> Path:
    if not path or "\0" in path:
        raise UsageError(f"{url!r} names no folder", hint=f"give {_KNOWN}", item=url)
    return Path(path)
