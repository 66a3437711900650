"""ohdiff cat: a file of a snapshot, or what an object of the repository says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import click
import msgspec

from ohdiff.errors import NoSnapshotError, UsageError
from ohdiff.repository import index, objects
from ohdiff.repository.keys import list_keys
from ohdiff.repository.snapshots import ANY, find_snapshot
from ohdiff_format.envelope import KIND_INDEX
from ohdiff_format.index import NUMBER_BODY, PackRecord, decode_index

from ..access import Access, opened
from ..selection import select
from ..shared import Output, shared
from .dump import write_file
from .snapshots import snapshot_fields


@click.command("cat")
@click.argument("kind", type=click.Choice(["file", "config", "key", "snapshot", "index"]))
@click.argument("names", nargs=-1, metavar="[ID | SNAPSHOT:PATH]...")
@shared()
def cat(output: Output, kind: str, names: Sequence[str]) -> None:
    """Show files of snapshots one after the other, or what objects of the repository say.

    \b
    ohdiff cat file latest:/home/me/notes.txt
    ohdiff cat config
    ohdiff cat key|snapshot|index ID...
    """
    if kind == "config":
        if names:
            raise UsageError("there is one config, which has no id", hint="ohdiff cat config")
    elif not names:
        raise UsageError(f"which {kind}?", hint=f"ohdiff cat {kind} " + ("SNAPSHOT:PATH" if kind == "file" else "ID"))
    with opened(output) as access:
        if kind == "file":
            _write_files(access, names)
            return
        for value in _OBJECTS[kind](access, names):
            _show(output, kind, value)


def _write_files(access: Access, names: Sequence[str]) -> None:
    for name in names:
        selection = select(access, name, ANY)
        entry = access.tree.find(selection.stored.root, selection.path)
        if entry is None:
            raise UsageError(f"{name} names no file", hint="write SNAPSHOT:PATH, such as latest:/etc/hosts")
        write_file(access, entry)


def _config(access: Access, _: Sequence[str]) -> list[Any]:
    return [msgspec.structs.asdict(access.repository.config)]


def _keys(access: Access, prefixes: Sequence[str]) -> list[Any]:
    stored = {key.key_id: key.key for key in list_keys(access.repository.storage)}
    ids = [_whole_id(stored, prefix, "key") for prefix in prefixes]
    return [{"id": key_id, **msgspec.structs.asdict(stored[key_id])} for key_id in ids]


def _snapshots(access: Access, selectors: Sequence[str]) -> list[Any]:
    return [snapshot_fields(find_snapshot(access.repository, selector)) for selector in selectors]


def _indexes(access: Access, prefixes: Sequence[str]) -> list[Any]:
    ids = [object_id.hex() for object_id in objects.list_ids(access.repository, index.FOLDER)]
    shown = []
    for prefix in prefixes:
        name = _whole_id(ids, prefix, "index")
        value = objects.read_object(
            access.repository, index.FOLDER, KIND_INDEX, NUMBER_BODY, bytes.fromhex(name), decode_index
        )
        shown.append({"id": name, "packs": [_pack(pack) for pack in value.packs]})
    return shown


def _pack(pack: PackRecord) -> dict[str, Any]:
    blocks = [
        {
            "sealed_size": block.sealed_size,
            "plain_size": block.plain_size,
            "codec": block.codec,
            "chunks": len(block.chunk_sizes),
        }
        for block in pack.blocks
    ]
    return {"id": pack.pack_id, "size": pack.size, "is_metadata": pack.is_metadata, "blocks": blocks}


_OBJECTS: Final[dict[str, Callable[[Access, Sequence[str]], list[Any]]]] = {
    "config": _config,
    "key": _keys,
    "snapshot": _snapshots,
    "index": _indexes,
}


def _whole_id(ids: Iterable[str], prefix: str, what: str) -> str:
    found = [object_id for object_id in ids if object_id.startswith(prefix)]
    if len(found) != 1:
        raise NoSnapshotError(f"{len(found) or 'no'} {what} objects have an id beginning with {prefix}")
    return found[0]


def _show(output: Output, kind: str, value: Any) -> None:
    readable = _readable(value)
    if output.is_json:
        output.record(kind, **readable)
    else:
        output.line(msgspec.json.format(msgspec.json.encode(readable), indent=2).decode())


def _readable(value: Any) -> Any:
    """Bytes as hex, structures as dictionaries."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, msgspec.Struct):
        return _readable(msgspec.structs.asdict(value))
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _readable(item) for key, item in value.items()}
    return [_readable(item) for item in value] if isinstance(value, list | tuple) else value
