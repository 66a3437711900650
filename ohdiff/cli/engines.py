"""The engine that a repository's chunker needs, and the chunkers of new repositories."""

from __future__ import annotations

import os
from typing import Final

from ohdiff.chunking.engine import EngineChoice, select_engine
from ohdiff.chunking.rule import RULE_ID, ChunkingRule
from ohdiff.errors import UsageError
from ohdiff_format.config import ChunkerConfig
from ohdiff_format.limits import CHUNK_SIZE_BYTES_MAX, KEY_SIZE

DEFAULT_CHUNK_SIZE_BYTES: Final = 32 << 10


def chunker_of_size(avg_size: int) -> ChunkerConfig:
    """The chunker of a new repository with chunks of this average size."""
    rule = ChunkingRule.from_key(bytes(KEY_SIZE), avg_size=avg_size)
    if rule.max_size > CHUNK_SIZE_BYTES_MAX:
        raise UsageError(f"an average chunk of {avg_size} bytes is too large", hint="use 4K to 4M; the default is 32K")
    return ChunkerConfig(
        rule=RULE_ID,
        min_size=rule.min_size,
        avg_size=rule.avg_size,
        max_size=rule.max_size,
        threshold_strict=rule.threshold_strict,
        threshold_loose=rule.threshold_loose,
    )


def default_chunker() -> ChunkerConfig:
    """The chunker of a new repository."""
    return chunker_of_size(DEFAULT_CHUNK_SIZE_BYTES)


def choose(chunker: ChunkerConfig, chunker_key: bytes, id_key: bytes, name: str, kernel: str) -> EngineChoice:
    """The engine for a repository; one that is named is a demand."""
    rule = ChunkingRule.from_key(
        chunker_key,
        avg_size=chunker.avg_size,
        min_size=chunker.min_size,
        max_size=chunker.max_size,
        threshold_strict=chunker.threshold_strict,
        threshold_loose=chunker.threshold_loose,
    )
    return select_engine(name, kernel, rule, id_key)


def engine_without_repository(name: str, kernel: str) -> EngineChoice:
    """An engine whose ids compare among themselves only."""
    return choose(default_chunker(), os.urandom(KEY_SIZE), os.urandom(KEY_SIZE), name, kernel)
