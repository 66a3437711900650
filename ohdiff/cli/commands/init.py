"""ohdiff init: make a repository."""

from __future__ import annotations

import click
import msgspec

from ohdiff.errors import RepositoryExistsError, UsageError
from ohdiff.repository.keys import Unlock
from ohdiff.storage import open_storage
from ohdiff_format.config import ChunkerConfig

from .. import access, engines, unlocking
from ..shared import Output, shared
from ..text import parse_size


@click.command("init")
@click.option("--no-encryption", is_flag=True, help="Store everything readable; ids and packs are still verified.")
@click.option(
    "--copy-chunker-from",
    "source",
    metavar="REPO",
    help="Cut like this repository, so that equal data can be copied between both as it is.",
)
@click.option("--chunk-size", metavar="SIZE", help="Average size of a chunk, a power of two.")
@shared()
def init(output: Output, no_encryption: bool, source: str | None, chunk_size: str | None) -> None:
    """Make a repository.

    It is encrypted, with a password that is asked for, or that the environment or --password-file names, or with
    --key-file (made if it is not there). Without --repo it is the default repository, with a key file of its own.
    """
    if source is not None and chunk_size is not None:
        raise UsageError("--chunk-size and --copy-chunker-from exclude each other")
    chunker = _chunker(output, source, chunk_size)
    url = access.named_repository(output)
    if url is None and not no_encryption:
        _make_default(output, chunker)
        return
    place = url or f"local:{access.default_repository()}"
    unlock = None if no_encryption else _new_unlock(output, place)
    repository = access.create(place, unlock, chunker)
    output.summary(
        [f"made the repository {repository.storage.location}" + _warning(unlock)],
        repository=repository.storage.location,
        id=repository.id_hex,
        encryption=repository.config.encryption,
    )


def _make_default(output: Output, chunker: ChunkerConfig) -> None:
    path = access.default_repository()
    if (path / "config").exists():
        raise RepositoryExistsError(f"there is a repository at {path} already; nothing was changed", item=str(path))
    access.make_default(output, unlocking.given_unlock(output), chunker)
    output.record("summary", repository=str(path), encryption=access.ENCRYPTION)


def _chunker(output: Output, source: str | None, chunk_size: str | None) -> ChunkerConfig:
    if source is None:
        return engines.default_chunker() if chunk_size is None else engines.chunker_of_size(parse_size(chunk_size))
    repository = access.open_unlocked(open_storage(source), output)
    return msgspec.structs.replace(repository.config.chunker, seed=repository.chunker_key)


def _new_unlock(output: Output, url: str) -> Unlock:
    from pathlib import Path

    key_file = output.settings.key_file
    if key_file is not None and not output.settings.password_file:
        return unlocking.read_or_make_key_file(Path(key_file), output)
    unlock = unlocking.given_unlock(output) or unlocking.asked_password(f"new password for {url}", twice=True)
    if unlock is None:
        raise UsageError(
            "a repository needs a password or a key file, and nobody can be asked here",
            hint="use --password-file, --key-file or a variable of the same name, or --no-encryption",
        )
    return unlock


def _warning(unlock: Unlock | None) -> str:
    if unlock is None:
        return ", not encrypted"
    return ", encrypted; without its password or key file nobody can read it"
