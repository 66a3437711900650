"""A snapshot that gives up in the middle of a large file ends: nobody waits for the pieces that are not taken."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.sources import random_bytes, write
from support.vault import Vault

from ohdiff.buffers import PooledBuffer
from ohdiff.errors import StorageError
from ohdiff.operations import file_reading, snapshot_files
from ohdiff.repository.chunk_writer import ChunkWriter


def test_a_storage_that_fails_below_a_large_file_ends_the_snapshot(
    vault: Vault, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (file_reading, snapshot_files):
        monkeypatch.setattr(module, "BATCH_SIZE_BYTES", 512 << 10)
    write(source / "large", random_bytes(6 << 20))

    def fail(self: ChunkWriter, buffer: PooledBuffer) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(ChunkWriter, "end_buffer", fail)
    with pytest.raises(StorageError, match="the disk is full"):
        vault.snapshot(source)
    assert vault.snapshots() == []
