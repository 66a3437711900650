"""Index objects and snapshots as stored objects: sealed whole, named by the BLAKE3 of their bytes (SPEC 5, 7, 9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from blake3 import blake3

from ohdiff.errors import IntegrityError, UnsupportedFormatError
from ohdiff_format.errors import FormatError, UnknownFeatureError
from ohdiff_format.limits import ID_SIZE

from .repository import Repository

_Value = TypeVar("_Value")
_READ_SIZE_BYTES: Final = 8 << 20


def list_ids(repository: Repository, folder: str) -> dict[bytes, int]:
    """Every object id in a folder, with its stored size."""
    found = {}
    for info in repository.storage.list_objects(folder):
        name = info.name.rpartition("/")[2]
        if len(name) == 2 * ID_SIZE:
            found[bytes.fromhex(name)] = info.size
    return found


def write_object(repository: Repository, folder: str, kind: int, number: int, plain: bytes) -> bytes:
    """Seal and store one object; returns its id once it is durable."""
    sealer = repository.new_sealer(kind)
    data = sealer.header + sealer.seal(number, plain)
    object_id = blake3(data).digest()
    repository.storage.write(f"{folder}/{object_id.hex()}", data)
    return object_id


def hash_object(repository: Repository, name: str, size: int) -> bytes:
    """The BLAKE3 of an object's first `size` bytes, read piece by piece."""
    hasher = blake3()
    for offset in range(0, size, _READ_SIZE_BYTES):
        hasher.update(repository.storage.read(name, offset, min(_READ_SIZE_BYTES, size - offset)))
    return hasher.digest()


def read_object(
    repository: Repository, folder: str, kind: int, number: int, object_id: bytes, decode: Callable[[bytes], _Value]
) -> _Value:
    """Read, verify, open and decode one object."""
    name = f"{folder}/{object_id.hex()}"
    data = repository.storage.read(name)
    if blake3(data).digest() != object_id:
        raise IntegrityError(f"{name} is damaged: its bytes do not match its name", item=name)
    sealer = repository.open_sealer(data, kind, name)
    try:
        return decode(sealer.open(number, memoryview(data)[len(sealer.header) :]))
    except UnknownFeatureError as error:
        raise UnsupportedFormatError(
            f"{name} was made by a newer version: {error}", hint="upgrade ohdiff", item=name
        ) from error
    except FormatError as error:
        raise IntegrityError(f"{name} is damaged: {error}", item=name) from error
