"""Sizes of a repository: what its snapshots hold, what is stored for it, and what dedup and compression save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ohdiff.repository import objects, packs
from ohdiff.repository.index import FOLDER as INDEX_FOLDER
from ohdiff.repository.index import ChunkIndex
from ohdiff.repository.repository import Repository
from ohdiff.repository.snapshots import FOLDER as SNAPSHOT_FOLDER
from ohdiff.repository.snapshots import StoredSnapshot


@dataclass(frozen=True, slots=True)
class RepositoryStatistics:
    """Counts and sizes in bytes.

    Attributes
    ----------
    source_size : what restoring every counted snapshot would write.
    unique_size : plain bytes of the data blocks: `source_size` after dedup.
    data_stored_size, metadata_stored_size : their sealed blocks, that is after compression.
    storage_size : every object, padding, index and snapshots included.
    """

    snapshots: int
    files: int
    source_size: int
    chunks: int
    unique_size: int
    data_stored_size: int
    metadata_plain_size: int
    metadata_stored_size: int
    packs: int
    storage_size: int

    @property
    def dedup_ratio(self) -> float:
        """How many times the source is larger than its unique bytes."""
        return self.source_size / self.unique_size if self.unique_size else 1.0

    @property
    def compression_ratio(self) -> float:
        """How many times the unique bytes are larger than stored."""
        return self.unique_size / self.data_stored_size if self.data_stored_size else 1.0


def repository_statistics(
    repository: Repository, index: ChunkIndex, stored: Sequence[StoredSnapshot]
) -> RepositoryStatistics:
    """Add up the repository; the source is that of the given snapshots."""
    plain, sealed = [0, 0], [0, 0]
    for block in index.blocks():
        plain[block.is_metadata] += block.plain_size
        sealed[block.is_metadata] += block.sealed_size
    sizes = {name: objects.list_ids(repository, name) for name in (packs.FOLDER, INDEX_FOLDER, SNAPSHOT_FOLDER)}
    return RepositoryStatistics(
        snapshots=len(stored),
        files=sum(item.snapshot.statistics.files for item in stored),
        source_size=sum(item.snapshot.statistics.size for item in stored),
        chunks=index.chunk_count,
        unique_size=plain[0],
        data_stored_size=sealed[0],
        metadata_plain_size=plain[1],
        metadata_stored_size=sealed[1],
        packs=len(sizes[packs.FOLDER]),
        storage_size=sum(sum(each.values()) for each in sizes.values()),
    )
