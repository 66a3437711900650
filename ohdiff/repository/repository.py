"""Creating and opening a repository: config, master key, and the sub-keys that the other rooms use (SPEC 3, 4)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ohdiff.errors import IntegrityError, RepositoryExistsError, UnsupportedFormatError, WrongKeyError
from ohdiff.storage.contract import ObjectExistsError, Storage
from ohdiff_format import config as format_config
from ohdiff_format import keys as format_keys
from ohdiff_format.config import ChunkerConfig, Config
from ohdiff_format.envelope import Sealer, new_sealer, open_sealer
from ohdiff_format.errors import AuthenticationError, FormatError, UnknownFeatureError
from ohdiff_format.limits import FORMAT_VERSION, KEY_SIZE

from . import keys
from .keys import KeyDescription, Unlock

CONFIG = "config"


@dataclass(frozen=True, slots=True)
class Repository:
    """An opened repository: its storage, config and keys.

    Attributes
    ----------
    master_key : 32 bytes; never written anywhere but wrapped in a key object.
    key_id : the key that opened it, "" without encryption.
    cache_folder : local folder for rebuildable data of this repository, or None for a temporary one.
    """

    storage: Storage
    config: Config
    master_key: bytes
    key_id: str
    cache_folder: Path | None

    @property
    def id_hex(self) -> str:
        """The repository's id as hex."""
        return self.config.id.hex()

    @property
    def chunk_id_key(self) -> bytes:
        """The key of the BLAKE3 that makes chunk ids."""
        return format_keys.derive_key(self.master_key, format_keys.CONTEXT_CHUNK_ID)

    @property
    def chunker_key(self) -> bytes:
        """The key that the boundary rule's tables are drawn from."""
        return self.config.chunker.seed or format_keys.derive_key(self.master_key, format_keys.CONTEXT_CHUNKER)

    @property
    def wrapping_key(self) -> bytes:
        """The key that wraps each object's data key."""
        return format_keys.derive_key(self.master_key, format_keys.CONTEXT_WRAPPING)

    def new_sealer(self, kind: int) -> Sealer:
        """A sealer with a fresh data key for one new object."""
        return new_sealer(kind, self.config.encryption, self.wrapping_key, os.urandom(KEY_SIZE))

    def open_sealer(self, header: bytes, kind: int, name: str) -> Sealer:
        """The sealer of the stored object `name` from its first bytes."""
        try:
            return open_sealer(header, kind, self.config.encryption, self.wrapping_key)
        except UnknownFeatureError as error:
            raise UnsupportedFormatError(
                f"{name} was made by a newer version: {error}", hint="upgrade ohdiff", item=name
            ) from error
        except FormatError as error:
            raise IntegrityError(f"{name} is damaged: {error}", item=name) from error


def create_repository(
    storage: Storage,
    *,
    encryption: str,
    unlock: Unlock | None,
    chunker: ChunkerConfig,
    description: KeyDescription,
    cache_folder: Path | None = None,
) -> Repository:
    """Make a repository in a storage that has none: the key first, then the config, whose presence makes it one.

    Parameters
    ----------
    encryption : "aes-256-gcm", "chacha20-poly1305" or "none" (then `unlock` is None).
    """
    if storage.exists(CONFIG):
        raise RepositoryExistsError(f"there is a repository at {storage.location} already; nothing was changed")
    master_key = os.urandom(KEY_SIZE)
    config = Config(
        format=format_config.FORMAT_NAME,
        version=FORMAT_VERSION,
        id=os.urandom(KEY_SIZE),
        created_ns=description.created_ns,
        encryption=encryption,  # type: ignore[arg-type]
        chunker=chunker,
        master_key=master_key if unlock is None else b"",
    )
    key_id = "" if unlock is None else keys.add_key(storage, master_key, unlock, description)
    mac_key = format_keys.derive_key(master_key, format_keys.CONTEXT_CONFIG)
    try:
        storage.write_new(CONFIG, format_config.encode_config(config, mac_key))
    except ObjectExistsError as error:
        if key_id:
            keys.remove_key(storage, key_id, allow_last=True)
        raise RepositoryExistsError(f"another repository was just made at {storage.location}") from error
    return Repository(storage, config, master_key, key_id, cache_folder)


def read_config(storage: Storage) -> tuple[Config, bytes]:
    """The config and its stored bytes; UnsupportedFormatError when this version is too old for it."""
    data = storage.read(CONFIG)
    try:
        return format_config.decode_config(data), data
    except UnknownFeatureError as error:
        raise UnsupportedFormatError(
            f"the repository at {storage.location} was made by a newer version: {error}",
            hint="upgrade ohdiff; nothing was written",
            item=CONFIG,
        ) from error
    except FormatError as error:
        raise IntegrityError(
            f"the config of {storage.location} is damaged: {error}",
            hint="restore the file named config from another copy of the repository",
            item=CONFIG,
        ) from error


def open_repository(storage: Storage, unlock: Unlock | None, cache_folder: Path | None = None) -> Repository:
    """Open an existing repository; `cache_folder` gets a sub-folder named by the repository's id."""
    config, data = read_config(storage)
    is_open = config.encryption == "none"
    if is_open and unlock is not None:
        # Whoever can write to the storage could have put a repository of their own in the place of ours.
        raise WrongKeyError(
            f"the repository at {storage.location} is not encrypted, but a password or key file was given",
            hint="if it is meant to be so, open it without them",
        )
    refusal: AuthenticationError | None = None
    for master_key, key_id in [(config.master_key, "")] if is_open else keys.open_master_keys(storage, unlock):
        try:
            format_config.authenticate_config(data, format_keys.derive_key(master_key, format_keys.CONTEXT_CONFIG))
        except AuthenticationError as error:
            refusal = error
            continue
        folder = None if cache_folder is None else cache_folder / config.id.hex()
        return Repository(storage, config, master_key, key_id, folder)
    raise IntegrityError(
        f"the config of {storage.location} was changed: {refusal}",
        hint="restore the file named config from another copy of the repository",
        item=CONFIG,
    ) from refusal
