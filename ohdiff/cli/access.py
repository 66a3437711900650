"""Finding and opening the repository that a command works on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Final

from ohdiff import clock
from ohdiff.chunking.engine import EngineChoice
from ohdiff.errors import NoRepositoryError, OhdiffError, WrongKeyError
from ohdiff.operations.tree_reader import TreeReader
from ohdiff.repository.chunk_reader import ChunkReader
from ohdiff.repository.index import ChunkIndex, open_index
from ohdiff.repository.keys import KeyDescription, Unlock
from ohdiff.repository.repository import Repository, create_repository, open_repository, read_config
from ohdiff.storage import Storage, open_storage
from ohdiff_format.config import ChunkerConfig

from . import engines, environment, unlocking
from .allocator import return_large_blocks
from .output import Output

ENCRYPTION: Final = "aes-256-gcm"
_PROMPTS: Final = 3


class Access:
    """An opened repository and what is read through it, each made when first used."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository

    @cached_property
    def index(self) -> ChunkIndex:
        """The chunk index."""
        return open_index(self.repository)

    @cached_property
    def chunks(self) -> ChunkReader:
        """Reads chunks."""
        return ChunkReader(self.repository, self.index)

    @cached_property
    def tree(self) -> TreeReader:
        """Reads trees."""
        return TreeReader(self.chunks)

    def engine(self, name: str, kernel: str, device_memory: int | None = None) -> EngineChoice:
        """The engine that cuts and hashes as this repository does, with a ceiling of device memory if need be."""
        repository = self.repository
        keys = (repository.chunker_key, repository.chunk_id_key)
        return engines.choose(repository.config.chunker, *keys, name, kernel, device_memory)

    def close(self) -> None:
        """Release local files."""
        if "index" in self.__dict__:
            self.index.close()


@contextmanager
def opened(output: Output, *, makes_default: bool = False) -> Iterator[Access]:
    """The repository of the flags, the environment, or the default one.

    Parameters
    ----------
    makes_default : make the default repository if there is none.
    """
    return_large_blocks()
    access = Access(_open(output, makes_default=makes_default))
    try:
        yield access
    finally:
        access.close()


def named_repository(output: Output) -> str | None:
    """The repository that the user names; None means the default one."""
    return output.settings.repository or environment.variable("REPOSITORY")


def default_repository() -> Path:
    """Where the default repository lies."""
    return environment.data_folder() / "repository"


def default_key_file() -> Path:
    """Where the key of the default repository lies."""
    return environment.config_folder() / "default.key"


def own_folders(repository: Repository) -> list[bytes]:
    """The folders of this machine that hold the repository and its local index, with links resolved."""
    folders = [] if repository.cache_folder is None else [repository.cache_folder.parent]
    place = Path(repository.storage.location)
    return [os.path.realpath(os.fsencode(folder)) for folder in [place, *folders] if folder.is_dir()]


def describe_key(label: str) -> KeyDescription:
    """What a key made here and now says of itself."""
    return KeyDescription(label=label, host=environment.host_name(), created_ns=clock.now_ns())


def create(url: str, unlock: Unlock | None, chunker: ChunkerConfig, *, label: str = "") -> Repository:
    """Make a repository; without `unlock` it is not encrypted."""
    return create_repository(
        open_storage(url, create=True),
        encryption="none" if unlock is None else ENCRYPTION,
        unlock=unlock,
        chunker=chunker,
        description=describe_key(label),
    )


def make_default(output: Output, unlock: Unlock | None, chunker: ChunkerConfig) -> None:
    """Make the default repository, with a key file unless a password or key file was given, and say where they are."""
    path, key_path = default_repository(), default_key_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    is_own_key = unlock is None
    create(f"local:{path}", unlock or unlocking.read_or_make_key_file(key_path, output), chunker, label="default")
    output.note(f"made the repository {path}, encrypted")
    if is_own_key:
        output.note(f"its key is {key_path}: without it the snapshots cannot be read")
        output.note("keep a copy elsewhere: ohdiff key export --output FILE")


def open_unlocked(storage: Storage, output: Output, *, default_key: Path | None = None) -> Repository:
    """Open with what was given, else the default key file, else what is typed."""
    config, _ = read_config(storage)
    cache = _cache_folder(output)
    unlock = unlocking.given_unlock(output)
    if config.encryption == "none":
        return open_repository(storage, unlock, cache)
    if unlock is None and default_key is not None and default_key.exists():
        unlock = unlocking.read_key_file(default_key, output)
    if unlock is not None:
        return open_repository(storage, unlock, cache)
    return _open_by_prompt(storage, output, cache)


def _open(output: Output, *, makes_default: bool) -> Repository:
    url = named_repository(output)
    if url is not None:
        return open_unlocked(open_storage(url), output)
    path = default_repository()
    if not (path / "config").exists():
        if not makes_default:
            raise NoRepositoryError(
                f"there is no default repository yet at {path}",
                hint="a first snapshot makes it; or name another with --repo or OHDIFF_REPOSITORY",
                item=str(path),
            )
        make_default(output, unlocking.given_unlock(output), engines.default_chunker())
    return open_unlocked(open_storage(f"local:{path}"), output, default_key=default_key_file())


def _open_by_prompt(storage: Storage, output: Output, cache: Path | None) -> Repository:
    for left in reversed(range(_PROMPTS)):
        unlock = unlocking.asked_password(f"password of {storage.location}")
        if unlock is None:
            break
        try:
            return open_repository(storage, unlock, cache)
        except WrongKeyError as error:
            if not left:
                raise
            sys.stderr.write(f"{error.message}; try again\n")
    raise unlocking.no_password()


def _cache_folder(output: Output) -> Path | None:
    """The folder for local copies of indexes; without one they are rebuilt by every command."""
    folder = environment.cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        if environment.variable("CACHE_DIR"):
            raise OhdiffError(
                f"the cache folder {folder} cannot be made: {error.strerror}", item=str(folder)
            ) from error
        output.note(f"no cache folder ({folder}: {error.strerror}): the index is rebuilt every time")
        return None
    return folder


__all__ = ["Access", "create", "make_default", "named_repository", "open_unlocked", "opened"]
