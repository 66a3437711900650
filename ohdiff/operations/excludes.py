"""Exclude rules: gitignore patterns, tagged directories, too large files (pathspec does the matching).

Patterns are relative to each given path: `/build` is the one at its top, `build` any, `build/` directories only, and
`!` takes back what an earlier pattern excluded. A pattern that begins with the given path itself is understood, too.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import pathspec

from ohdiff.errors import UsageError
from ohdiff.filesystem import DirectoryHandle, EntryColumns

CACHE_TAG = b"CACHEDIR.TAG"
_CACHE_SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55"
_IGNORE_FILE_SIZE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class ExcludeOptions:
    """What to leave out.

    Attributes
    ----------
    patterns : gitignore lines; later ones win.
    if_present : a directory that holds one of these names is kept without its contents, but for that file.
    caches : the same for a valid CACHEDIR.TAG (bford.info/cachedir).
    larger_than : files of more bytes than this are left out, None for no limit.
    ignore_files : files of this name hold more patterns for the directory that they lie in.
    """

    patterns: tuple[str, ...] = ()
    if_present: tuple[bytes, ...] = ()
    caches: bool = False
    larger_than: int | None = None
    ignore_files: tuple[bytes, ...] = ()

    def __bool__(self) -> bool:
        return bool(
            self.patterns or self.if_present or self.caches or self.larger_than is not None or self.ignore_files
        )


@dataclass(frozen=True, slots=True)
class _Patterns:
    base: bytes
    spec: pathspec.GitIgnoreSpec


class ExcludeRules:
    """The rules before a given path is entered."""

    def __init__(self, options: ExcludeOptions) -> None:
        self._options = options
        compile_patterns(options.patterns)

    def enter(self, handle: DirectoryHandle, path: bytes, names: list[bytes]) -> _Inside:
        """The rules inside a given path."""
        own = [_Patterns(path, compile_patterns(_relative(self._options.patterns, path)))]
        return _Inside(self._options, own if self._options.patterns else []).enter(handle, path, names)

    def kept_names(self, names: list[bytes]) -> list[bytes]:
        """All of them: no directory has been entered."""
        return names

    def kept_rows(self, path: bytes, entries: EntryColumns) -> list[int] | None:
        """All of them: no directory has been entered."""
        return None


@dataclass(frozen=True, slots=True)
class _Inside:
    """The rules inside one directory; `only` is what is kept of a tagged one, None for everything."""

    options: ExcludeOptions
    patterns: list[_Patterns]
    only: list[bytes] | None = field(default=None)

    def enter(self, handle: DirectoryHandle, path: bytes, names: list[bytes]) -> _Inside:
        """The rules inside a sub-directory, with its own ignore files and tags."""
        patterns = self.patterns
        for name in self.options.ignore_files:
            if name in names:
                patterns = [*patterns, _Patterns(path, _compile_valid(_read_lines(handle, name)))]
        return _Inside(self.options, patterns, self._tags(handle, names))

    def kept_names(self, names: list[bytes]) -> list[bytes]:
        """All names, or the tags of a tagged directory."""
        return names if self.only is None else self.only

    def kept_rows(self, path: bytes, entries: EntryColumns) -> list[int] | None:
        """The rows that no pattern and no size excludes."""
        limit = self.options.larger_than
        if not self.patterns and limit is None:
            return None
        kept = []
        for row, name in enumerate(entries.names):
            kind = entries.modes[row] & 0xF000
            if limit is not None and kind == 0x8000 and entries.sizes[row] > limit:
                continue
            if not self._is_excluded(path + b"/" + name, kind == 0x4000):
                kept.append(row)
        return kept

    def _is_excluded(self, path: bytes, is_directory: bool) -> bool:
        for patterns in reversed(self.patterns):
            relative = os.fsdecode(path[len(patterns.base) + 1 :])
            include = patterns.spec.check_file(relative + "/" if is_directory else relative).include
            if include is not None:
                return include
        return False

    def _tags(self, handle: DirectoryHandle, names: list[bytes]) -> list[bytes] | None:
        tags = [name for name in self.options.if_present if name in names]
        if self.options.caches and CACHE_TAG in names and _is_cache_tag(handle):
            tags.append(CACHE_TAG)
        return sorted(set(tags)) or None


def compile_patterns(lines: Sequence[str]) -> pathspec.GitIgnoreSpec:
    """Compile gitignore lines; UsageError names one that is not valid."""
    try:
        return pathspec.GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise UsageError(f"not a valid exclude pattern: {error}") from error


def _compile_valid(lines: Sequence[str]) -> pathspec.GitIgnoreSpec:
    """Compile the lines of a file that others keep; as in git, one that is not valid matches nothing."""
    try:
        return compile_patterns(lines)
    except UsageError:
        return compile_patterns([line for line in lines if _is_valid(line)])


def _is_valid(line: str) -> bool:
    try:
        compile_patterns([line])
    except UsageError:
        return False
    return True


def _relative(patterns: Sequence[str], path: bytes) -> list[str]:
    root = os.fsdecode(path)
    relative = []
    for line in patterns:
        sign, body = ("!", line[1:]) if line.startswith("!") else ("", line)
        if root and body.startswith(root + "/"):
            body = body[len(root) :]
        relative.append(sign + body)
    return relative


def _read_lines(handle: DirectoryHandle, name: bytes) -> list[str]:
    """The lines of an ignore file; as in git, one that is a link or no regular file does not count."""
    try:
        fd = handle.open_file(name)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EINVAL):
            return []
        raise
    with os.fdopen(fd, "rb") as file:
        text = os.fsdecode(file.read(_IGNORE_FILE_SIZE_BYTES_MAX))
    return [line.removesuffix("\r") for line in text.split("\n")]


def _is_cache_tag(handle: DirectoryHandle) -> bool:
    try:
        fd = handle.open_file(CACHE_TAG)
    except OSError:
        return False
    with os.fdopen(fd, "rb") as file:
        return file.read(len(_CACHE_SIGNATURE)) == _CACHE_SIGNATURE
