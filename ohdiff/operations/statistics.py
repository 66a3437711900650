"""Sizes of a repository: what its snapshots hold, and what dedup, resemblance and compression each save of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ohdiff.repository import objects, packs
from ohdiff.repository.index import FOLDER as INDEX_FOLDER
from ohdiff.repository.index import ChunkIndex
from ohdiff.repository.index_segment import BlockLocation
from ohdiff.repository.repository import Repository
from ohdiff.repository.snapshots import FOLDER as SNAPSHOT_FOLDER
from ohdiff.repository.snapshots import StoredSnapshot
from ohdiff_format.blocks import CODEC_DELTA, CODEC_NUMBERS, CODEC_RAW, CODEC_ZSTD
from ohdiff_format.numbers import (
    CAST_F32_TO_BF16,
    CAST_F32_TO_F16,
    CAST_NONE,
    TRANSFORM_FLOAT_DIFFERENCE,
    TRANSFORM_GROUPED_FLOAT_DIFFERENCE,
    TRANSFORM_INTEGER_DIFFERENCE,
    TRANSFORM_NONE,
    TRANSFORM_XOR,
    parse_parameters,
)

_CODECS: Final = {CODEC_RAW: "raw", CODEC_ZSTD: "zstd", CODEC_DELTA: "delta", CODEC_NUMBERS: "numbers"}
_TRANSFORMS: Final = {
    TRANSFORM_NONE: "planes",
    TRANSFORM_XOR: "xor",
    TRANSFORM_FLOAT_DIFFERENCE: "float difference",
    TRANSFORM_INTEGER_DIFFERENCE: "integer difference",
    TRANSFORM_GROUPED_FLOAT_DIFFERENCE: "grouped float difference",
}
_CASTS: Final = {CAST_NONE: "", CAST_F32_TO_BF16: "f32 to bf16", CAST_F32_TO_F16: "f32 to f16"}


class Form(NamedTuple):
    """How a block is stored.

    Attributes
    ----------
    codec : raw, zstd, delta, or numbers.
    transform : of numbers: planes, xor, float difference, integer difference, grouped float difference.
    cast : of numbers whose base has another kind: f32 to bf16, f32 to f16.
    has_base : whether it is stored as what differs from base chunks, which is resemblance.
    """

    codec: str
    transform: str = ""
    cast: str = ""
    has_base: bool = False


@dataclass(slots=True)
class Tally:
    """Blocks or chunks, and their bytes; `depth` is the longest chain of blocks below, 0 if all stand alone."""

    count: int = 0
    plain_size: int = 0
    stored_size: float = 0
    depth: int = 0

    def add(self, plain_size: int, stored_size: float, depth: int, count: int = 1) -> None:
        """Count something more."""
        self.count += count
        self.plain_size += plain_size
        self.stored_size += stored_size
        self.depth = max(self.depth, depth)

    @property
    def ratio(self) -> float:
        """How many times the plain bytes are larger than stored."""
        return self.plain_size / self.stored_size if self.stored_size else 1.0


@dataclass(frozen=True, slots=True)
class RepositoryStatistics:
    """Counts and sizes in bytes.

    Attributes
    ----------
    source_size : what restoring every counted snapshot would write.
    unique_size : plain bytes of the data blocks: `source_size` after dedup.
    data_stored_size, metadata_stored_size : their sealed blocks.
    storage_size : every object, padding, index and snapshots included.
    forms : the data blocks by how they are stored, the largest first.
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
    forms: dict[Form, Tally] = field(default_factory=dict)

    @property
    def dedup_ratio(self) -> float:
        """How many times the source is larger than its unique bytes."""
        return self.source_size / self.unique_size if self.unique_size else 1.0

    @property
    def resemblance(self) -> Tally:
        """The data blocks that stand on others."""
        return total(tally for form, tally in self.forms.items() if form.has_base)

    @property
    def compression(self) -> Tally:
        """The data blocks that stand alone."""
        return total(tally for form, tally in self.forms.items() if not form.has_base)

    @property
    def overall_ratio(self) -> float:
        """How many times the source is larger than the data that is stored for it."""
        return self.source_size / self.data_stored_size if self.data_stored_size else 1.0


def form_of(block: BlockLocation) -> Form:
    """How a block is stored; one of a later version is told by its number."""
    codec = _CODECS.get(block.codec, f"codec {block.codec}")
    if block.codec != CODEC_NUMBERS:
        return Form(codec, has_base=bool(block.base_prefixes))
    parameters = parse_parameters(block.parameters)
    return Form(codec, _TRANSFORMS[parameters.transform], _CASTS[parameters.cast], bool(block.base_prefixes))


def total(tallies: Iterable[Tally]) -> Tally:
    """The sum of some."""
    whole = Tally()
    for tally in tallies:
        whole.add(tally.plain_size, tally.stored_size, tally.depth, tally.count)
    return whole


def largest_first(forms: dict[Form, Tally]) -> dict[Form, Tally]:
    """The same in order of what is stored."""
    return dict(sorted(forms.items(), key=lambda item: (-item[1].stored_size, item[0])))


def repository_statistics(
    repository: Repository, index: ChunkIndex, stored: Sequence[StoredSnapshot]
) -> RepositoryStatistics:
    """Add up the repository; the source is that of the given snapshots."""
    metadata = Tally()
    forms: dict[Form, Tally] = {}
    for block in index.blocks():
        tally = metadata if block.is_metadata else forms.setdefault(form_of(block), Tally())
        tally.add(block.plain_size, block.sealed_size, block.depth)
    data = total(forms.values())
    sizes = {name: objects.list_ids(repository, name) for name in (packs.FOLDER, INDEX_FOLDER, SNAPSHOT_FOLDER)}
    return RepositoryStatistics(
        snapshots=len(stored),
        files=sum(item.snapshot.statistics.files for item in stored),
        source_size=sum(item.snapshot.statistics.size for item in stored),
        chunks=index.chunk_count,
        unique_size=data.plain_size,
        data_stored_size=int(data.stored_size),
        metadata_plain_size=metadata.plain_size,
        metadata_stored_size=int(metadata.stored_size),
        packs=len(sizes[packs.FOLDER]),
        storage_size=sum(sum(each.values()) for each in sizes.values()),
        forms=largest_first(forms),
    )
