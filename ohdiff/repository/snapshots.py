"""Storing, listing and selecting snapshots (SPEC section 9). Storing one is the repository's only commit point."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ohdiff.errors import IntegrityError, NoSnapshotError, UsageError
from ohdiff_format.envelope import KIND_SNAPSHOT
from ohdiff_format.snapshot import NUMBER_BODY, Snapshot, decode_snapshot, encode_snapshot
from ohdiff_format.tree import Content

from . import objects
from .repository import Repository

FOLDER = "snapshots"
_LATEST = re.compile(r"latest(?:~(\d+))?")
_PREFIX = re.compile(r"[0-9a-f]{1,64}")


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot and its 32-byte id."""

    snapshot_id: bytes
    snapshot: Snapshot

    @property
    def short_id(self) -> str:
        """The first eight hex digits of the id."""
        return self.snapshot_id.hex()[:8]

    @property
    def root(self) -> Content:
        """The content of the root directory."""
        snapshot = self.snapshot
        return Content(snapshot.root_ids, tuple(snapshot.root_sizes), snapshot.root_depth)


@dataclass(frozen=True, slots=True)
class SnapshotFilter:
    """Snapshots of one of `hosts`, with all of `tags`, holding all of `paths`; empty means any."""

    hosts: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    paths: tuple[bytes, ...] = ()

    def accepts(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot passes."""
        return (
            (not self.hosts or snapshot.host in self.hosts)
            and set(self.tags) <= set(snapshot.tags)
            and set(self.paths) <= set(snapshot.paths)
        )


ANY = SnapshotFilter()


def save_snapshot(repository: Repository, snapshot: Snapshot) -> bytes:
    """Commit: everything that the snapshot needs must be durable already."""
    return objects.write_object(repository, FOLDER, KIND_SNAPSHOT, NUMBER_BODY, encode_snapshot(snapshot))


def load_snapshot(repository: Repository, snapshot_id: bytes) -> StoredSnapshot:
    """Read and verify one snapshot."""
    snapshot = objects.read_object(repository, FOLDER, KIND_SNAPSHOT, NUMBER_BODY, snapshot_id, decode_snapshot)
    return StoredSnapshot(snapshot_id, snapshot)


@dataclass(frozen=True, slots=True)
class SnapshotList:
    """Snapshots, oldest first, and what was wrong with each object that cannot be read: it may be any snapshot."""

    stored: list[StoredSnapshot] = field(default_factory=list)
    damaged: list[IntegrityError] = field(default_factory=list)


def read_snapshots(repository: Repository, accept: SnapshotFilter = ANY) -> SnapshotList:
    """The snapshots that pass, and all that are damaged."""
    found = SnapshotList()
    for snapshot_id in objects.list_ids(repository, FOLDER):
        try:
            item = load_snapshot(repository, snapshot_id)
        except IntegrityError as error:
            error.hint = error.hint or "bring it back from a copy of the repository; run: ohdiff check"
            found.damaged.append(error)
            continue
        if accept.accepts(item.snapshot):
            found.stored.append(item)
    found.stored.sort(key=lambda item: (item.snapshot.time_ns, item.snapshot_id))
    return found


def list_snapshots(repository: Repository, accept: SnapshotFilter = ANY) -> list[StoredSnapshot]:
    """The snapshots that pass, oldest first; IntegrityError if there is a damaged one, as that might pass as well."""
    found = read_snapshots(repository, accept)
    if found.damaged:
        raise found.damaged[0]
    return found.stored


def find_snapshot(repository: Repository, selector: str, accept: SnapshotFilter = ANY) -> StoredSnapshot:
    """The one snapshot that `latest`, `latest~N` or an unambiguous id prefix means.

    Raises
    ------
    NoSnapshotError : none or several fit.
    IntegrityError : it is damaged; or, as `latest` is counted from the newest, any is that might be newer.
    """
    latest = _LATEST.fullmatch(selector)
    if latest:
        found = read_snapshots(repository, accept)
        if found.damaged:
            raise _not_known(selector, found.damaged[0])
        stored = found.stored
        back = int(latest[1] or 0)
        if back >= len(stored):
            raise NoSnapshotError(
                f"{selector}: there are {len(stored)} snapshots that fit", hint="list them with: ohdiff snapshots"
            )
        return stored[-1 - back]
    if not _PREFIX.fullmatch(selector):
        raise UsageError(f"{selector!r} is not a snapshot", hint="use latest, latest~N, or an id's first digits")
    ids = [item for item in objects.list_ids(repository, FOLDER) if item.hex().startswith(selector)]
    if len(ids) != 1:
        what = "no snapshot has" if not ids else f"{len(ids)} snapshots have"
        raise NoSnapshotError(f"{what} an id beginning with {selector}", hint="list them with: ohdiff snapshots")
    return load_snapshot(repository, ids[0])


def _not_known(selector: str, error: IntegrityError) -> IntegrityError:
    known = IntegrityError(
        f"{error.message}; so nobody can tell which snapshot is {selector}",
        hint="give the id of one that ohdiff snapshots lists",
        item=error.item,
    )
    known.__cause__ = error
    return known
