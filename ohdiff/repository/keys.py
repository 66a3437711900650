"""Opening a repository's master key, and adding, listing and removing the keys that wrap it (SPEC section 4)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
from blake3 import blake3

from ohdiff.errors import IntegrityError, RepositoryError, UsageError, WrongKeyError
from ohdiff.storage.contract import Storage
from ohdiff_format import keys as format_keys
from ohdiff_format.errors import AuthenticationError, FormatError
from ohdiff_format.keys import KeyObject
from ohdiff_format.limits import KEY_SIZE

FOLDER = "keys"


@dataclass(frozen=True, slots=True)
class Password:
    """Opens by a password, stretched with argon2id."""

    secret: bytes


@dataclass(frozen=True, slots=True)
class KeyFile:
    """Opens by the 32 random bytes of a key file."""

    secret: bytes

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_SIZE:
            raise UsageError(f"a key file holds {KEY_SIZE} bytes, this one {len(self.secret)}")


Unlock = Password | KeyFile


@dataclass(frozen=True, slots=True)
class KeyDescription:
    """How one key is set up."""

    label: str = ""
    host: str = ""
    created_ns: int = 0


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key object and its id."""

    key_id: str
    key: KeyObject


def generate_key_file() -> KeyFile:
    """A fresh random key file."""
    return KeyFile(os.urandom(KEY_SIZE))


def list_keys(storage: Storage) -> list[StoredKey]:
    """Every key of the repository, oldest first."""
    stored = [StoredKey(key_id, _load(storage, key_id)) for key_id in _key_ids(storage)]
    return sorted(stored, key=lambda item: (item.key.created_ns, item.key_id))


def open_master_keys(storage: Storage, unlock: Unlock | None) -> Iterator[tuple[bytes, str]]:
    """Each master key that opens, and the id of its key; WrongKeyError when none does.

    More than one only where the making of a repository was interrupted and begun again.
    """
    if unlock is None:
        raise WrongKeyError(
            "the repository is encrypted and no password or key file was given", hint="set one of the password options"
        )
    damaged: list[IntegrityError] = []
    has_opened = False
    for key_id in _key_ids(storage):
        try:
            key = _load(storage, key_id)
        except IntegrityError as error:
            damaged.append(error)
            continue
        master = _try_open(key, unlock)
        if master is not None:
            has_opened = True
            yield master, key_id
    if has_opened:
        return
    if damaged:
        raise damaged[0]
    raise WrongKeyError("no key of the repository opens with this password or key file")


def add_key(storage: Storage, master_key: bytes, unlock: Unlock, description: KeyDescription) -> str:
    """Store one more way to open the master key; returns its id."""
    key = _wrap(master_key, unlock, description)
    data = format_keys.encode_key(key)
    key_id = blake3(data).hexdigest()
    storage.write(f"{FOLDER}/{key_id}", data)
    return key_id


def remove_key(storage: Storage, key_id: str, *, allow_last: bool = False) -> None:
    """Remove one key; refuses the last one, after which nobody could open the repository."""
    ids = _key_ids(storage)
    if key_id not in ids:
        raise UsageError(f"no key {key_id}", hint="list the keys with: ohdiff key list")
    if len(ids) == 1 and not allow_last:
        raise RepositoryError(
            "this is the last key: without it nobody can open the repository", hint="add another key first"
        )
    storage.delete(f"{FOLDER}/{key_id}")


def _key_ids(storage: Storage) -> list[str]:
    return sorted(info.name.rpartition("/")[2] for info in storage.list_objects(FOLDER))


def _load(storage: Storage, key_id: str) -> KeyObject:
    name = f"{FOLDER}/{key_id}"
    data = storage.read(name)
    if blake3(data).hexdigest() != key_id:
        raise IntegrityError(f"the key object {key_id[:12]} is damaged", item=name)
    try:
        return format_keys.decode_key(data)
    except FormatError as error:
        raise IntegrityError(f"the key object {key_id[:12]} cannot be read: {error}", item=name) from error


def _try_open(key: KeyObject, unlock: Unlock) -> bytes | None:
    try:
        if isinstance(unlock, Password) and key.kdf == "argon2id":
            return format_keys.unwrap_key(format_keys.key_from_password(unlock.secret, key), key.wrapped)
        if isinstance(unlock, KeyFile) and key.kdf == "keyfile":
            return format_keys.unwrap_key(format_keys.key_from_file(unlock.secret), key.wrapped)
    except AuthenticationError:
        return None
    return None


def _wrap(master_key: bytes, unlock: Unlock, description: KeyDescription) -> KeyObject:
    base = KeyObject(
        version=1,
        kdf="keyfile",
        wrapped=b"",
        label=description.label,
        created_ns=description.created_ns,
        host=description.host,
    )
    if isinstance(unlock, KeyFile):
        wrapped = format_keys.wrap_key(format_keys.key_from_file(unlock.secret), master_key)
        return msgspec.structs.replace(base, wrapped=wrapped)
    key = msgspec.structs.replace(
        base,
        kdf="argon2id",
        salt=os.urandom(16),
        memory_kib=format_keys.ARGON2_MEMORY_KIB,
        passes=format_keys.ARGON2_PASSES,
        lanes=format_keys.ARGON2_LANES,
    )
    wrapped = format_keys.wrap_key(format_keys.key_from_password(unlock.secret, key), master_key)
    return msgspec.structs.replace(key, wrapped=wrapped)
