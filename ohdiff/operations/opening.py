"""Opening a repository for a call from Python: one that is open already, or its place and what unlocks it."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ohdiff.chunking.engine import Accelerator, EngineChoice, select_engine
from ohdiff.chunking.rule import ChunkingRule
from ohdiff.errors import UsageError
from ohdiff.repository.index import ChunkIndex, open_index
from ohdiff.repository.keys import KeyFile, Password, Unlock
from ohdiff.repository.repository import Repository, open_repository
from ohdiff.storage import open_storage
from ohdiff_format.config import ChunkerConfig
from ohdiff_format.limits import KEY_SIZE

RepositoryPlace = Repository | str | os.PathLike[str]


@contextmanager
def opened(
    repo: RepositoryPlace,
    password: str | bytes | None = None,
    key_file: str | os.PathLike[str] | None = None,
    cache_folder: str | os.PathLike[str] | None = None,
) -> Iterator[tuple[Repository, ChunkIndex]]:
    """A repository and its index, which is closed at the end.

    Parameters
    ----------
    repo : an open repository, or its folder or URL; the others are for the latter.
    cache_folder : where the local copy of the index is kept; without one it is rebuilt by each call.
    """
    if isinstance(repo, Repository):
        repository = repo
    else:
        cache = None if cache_folder is None else Path(cache_folder)
        repository = open_repository(open_storage(os.fspath(repo)), _unlock(password, key_file), cache)
    index = open_index(repository)
    try:
        yield repository, index
    finally:
        index.close()


def parse_key_file(data: bytes) -> KeyFile:
    """The key that a key file holds: 32 bytes, or a line of base64 that stands for them; UsageError if it is none."""
    if len(data) == KEY_SIZE:
        return KeyFile(data)
    lines = [line.strip() for line in data.splitlines() if line.strip() and not line.startswith(b"#")]
    try:
        return KeyFile(base64.b64decode(b"".join(lines), validate=True))
    except binascii.Error as error:
        raise UsageError("this is not a key file", hint="it is a line of base64 that stands for 32 bytes") from error


def choose_engine(
    chunker: ChunkerConfig,
    chunker_key: bytes,
    id_key: bytes,
    name: str,
    kernel: str,
    accelerator: Accelerator | None = None,
) -> EngineChoice:
    """The engine that cuts and hashes as a repository does; one that is named is a demand."""
    rule = ChunkingRule.from_key(
        chunker_key,
        avg_size=chunker.avg_size,
        min_size=chunker.min_size,
        max_size=chunker.max_size,
        threshold_strict=chunker.threshold_strict,
        threshold_loose=chunker.threshold_loose,
    )
    return select_engine(name, kernel, rule, id_key, accelerator)


def _unlock(password: str | bytes | None, key_file: str | os.PathLike[str] | None) -> Unlock | None:
    if password is not None and key_file is not None:
        raise UsageError("both a password and a key file were given", hint="give one")
    if password is not None:
        return Password(password.encode() if isinstance(password, str) else password)
    return None if key_file is None else parse_key_file(Path(key_file).read_bytes())
