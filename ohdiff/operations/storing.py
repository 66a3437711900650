"""Where a snapshot's chunks go: the repository with everything that makes them small, or nowhere on a dry run."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from ohdiff.chunking.engine import Engine
from ohdiff.repository.chunk_reader import ChunkReader
from ohdiff.repository.chunk_writer import BLOCK_SIZE_BYTES, ChunkSink, ChunkWriter, DrySink
from ohdiff.repository.encoding import BlockCompressor
from ohdiff.repository.index import ChunkIndex
from ohdiff.repository.repository import Repository
from ohdiff.scheduling.pace import UNPACED, Pace, PacedExecutor

from .bases import DEPTH_MAX, StoredBases
from .resembling import Resembling
from .tree_reader import TreeReader

# Decoded blocks of the parent's trees, which are read in about the order in which they were stored.
TREE_CACHE_SIZE_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """How chunks are stored.

    Attributes
    ----------
    level : zstd level, None for no compression.
    encoders : threads that encode.
    queue_depth : blocks in flight.
    pace : says when a unit of work may run.
    compressor : compresses blocks of data instead of the CPU.
    """

    level: int | None
    encoders: int
    queue_depth: int
    is_dry_run: bool = False
    pace: Pace = UNPACED
    compressor: BlockCompressor | None = None


@contextmanager
def open_sink(
    repository: Repository, index: ChunkIndex, engine: Engine, tree: TreeReader, options: SinkOptions
) -> Iterator[tuple[ChunkSink, StoredBases | None]]:
    """The sink, and what knows bases for it: None if nothing is compressed.

    The caller finishes, interrupts or aborts the sink.
    """
    if options.is_dry_run:
        yield DrySink(repository, index), None
        return
    level, depth = options.level, options.queue_depth
    if options.pace.leaves_page_cache:
        repository.storage.spare_page_cache()
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(options.encoders, thread_name_prefix="encoder"))
        encoders = PacedExecutor(pool, options.pace)
        if level is None:
            yield ChunkWriter(repository, index, encoders, level=None, queue_depth=depth), None
            return
        resembling = Resembling.open(repository, engine, DEPTH_MAX)
        if resembling is not None:
            stack.callback(resembling.close)
        # Each encoder works its way along the bases of its own blocks. One block more would save 16 decodings of 127 on
        # a source tree, for 10 MB.
        reader = ChunkReader(repository, index, options.encoders * BLOCK_SIZE_BYTES)
        bases = StoredBases(index, reader, tree, resembling)
        writer = ChunkWriter(
            repository,
            index,
            encoders,
            level=level,
            queue_depth=depth,
            planner=bases,
            on_encoded=resembling,
            compressor=options.compressor,
        )
        yield writer, bases
