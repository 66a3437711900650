"""Packs as they are written: readable from their end, named by their bytes, padded, and filled two at a time."""

from __future__ import annotations

import random
import threading

import pytest
from blake3 import blake3
from support.sources import random_bytes
from support.vault import Vault, object_names

from ohdiff.errors import StorageError
from ohdiff.repository import packs
from ohdiff.repository.packs import PackSet
from ohdiff.storage import MemoryStorage
from ohdiff.storage.memory import MemoryWriter
from ohdiff_format.envelope import HEADER_SIZE_MAX, KIND_PACK
from ohdiff_format.index import PackRecord
from ohdiff_format.pack import (
    NUMBER_FOOTER,
    NUMBER_TRAILER,
    TRAILER_SIZE,
    BlockRecord,
    decode_footer,
    decode_trailer,
    padded_size,
)

PREFIX = bytes(16)


def append(open_packs: PackSet, payload: bytes, *, is_metadata: bool = False) -> None:
    open_packs.append(BlockRecord(0, 0, [len(payload)], PREFIX), payload, is_metadata)


def made(vault: Vault, payloads: list[tuple[bytes, bool]]) -> list[PackRecord]:
    records: list[PackRecord] = []
    open_packs = PackSet(vault.open(), records.append)
    for payload, is_metadata in payloads:
        append(open_packs, payload, is_metadata=is_metadata)
    open_packs.finish()
    assert open_packs.stored_size == sum(record.size for record in records)
    return records


def payloads(count: int, size: int = 10_000) -> list[tuple[bytes, bool]]:
    return [(random_bytes(size + number, number), number % 5 == 0) for number in range(count)]


@pytest.mark.parametrize("encryption", ["aes-256-gcm", "chacha20-poly1305", "none"])
def test_a_pack_is_read_from_its_end_and_every_block_opens(encryption: str) -> None:
    vault = Vault(MemoryStorage("packs")).create(encryption=encryption)
    records = made(vault, payloads(12))
    repository = vault.open()
    seen = []
    for record in records:
        data = vault.storage.read(f"packs/{record.pack_id.hex()}")
        assert blake3(data).digest() == record.pack_id
        assert len(data) == record.size
        sealer = repository.open_sealer(data[:HEADER_SIZE_MAX], KIND_PACK, "pack")
        footer_size = decode_trailer(sealer.open(NUMBER_TRAILER, data[-TRAILER_SIZE:]), len(data))
        footer = decode_footer(bytes(sealer.open(NUMBER_FOOTER, data[-TRAILER_SIZE - footer_size : -TRAILER_SIZE])))
        assert footer.is_metadata == record.is_metadata
        assert [(block.sealed_size, block.codec, block.chunk_sizes) for block in footer.blocks] == [
            (block.sealed_size, block.codec, block.chunk_sizes) for block in record.blocks
        ]
        offset = record.header_size
        for number, block in enumerate(record.blocks):
            seen.append(bytes(sealer.open(number, data[offset : offset + block.sealed_size])))
            offset += block.sealed_size
    assert sorted(seen) == sorted(payload for payload, _ in payloads(12))


def test_packs_have_padded_sizes(vault: Vault) -> None:
    for record in made(vault, payloads(12)):
        assert padded_size(record.size) == record.size


def test_data_is_spread_over_two_packs_and_metadata_stays_apart(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "SystemRandom", lambda: random.Random(1))
    records = made(vault, payloads(20))
    assert sorted(record.is_metadata for record in records) == [False, False, True]
    assert all(len(record.blocks) > 1 for record in records)


def test_a_full_pack_is_closed_and_the_next_one_begun(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "PACK_SIZE_BYTES", 64_000)
    records = made(vault, payloads(60))
    assert len(records) > 6
    assert all(record.header_size + sum(block.sealed_size for block in record.blocks) <= 64_000 for record in records)


def test_a_large_pack_is_closed_where_padding_costs_little(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "PACK_SIZE_BYTES", 640_000)
    monkeypatch.setattr(packs, "_CLOSABLE_SIZE_BYTES", 300_000)
    records = made(vault, [(random_bytes(9_000, number), False) for number in range(300)])
    waste = [record.size - sum(block.sealed_size for block in record.blocks) for record in records[:-2]]
    assert sum(waste) < 0.02 * sum(record.size for record in records)


def test_nothing_is_left_of_packs_that_were_aborted(vault: Vault) -> None:
    told: list[PackRecord] = []
    open_packs = PackSet(vault.open(), told.append)
    append(open_packs, b"x" * 1000)
    append(open_packs, b"y" * 1000, is_metadata=True)
    open_packs.abort()
    open_packs.finish()
    assert told == []
    assert object_names(vault.storage, ["packs"]) == []


class Gate(MemoryStorage):
    """Keeps commits waiting until it is opened, and refuses those from `refuse_from` on, counted from 0."""

    def __init__(self, vault: Vault, refuse_from: int = 1 << 30) -> None:
        super().__init__("gate")
        self._folders = vault.storage._folders  # type: ignore[attr-defined]
        self.opened = threading.Event()
        self.refuse_from = refuse_from
        self.begun = threading.Semaphore(0)
        self.commits = 0
        self.aborts = 0

    def open_writer(self, folder: str) -> GatedWriter:
        self.begun.release()
        return GatedWriter(self, folder)


class GatedWriter(MemoryWriter):
    def __init__(self, gate: Gate, folder: str) -> None:
        super().__init__(gate, folder)
        self._gate = gate
        self._is_done = False

    def commit(self, name: str) -> None:
        assert self._gate.opened.wait(60), "nobody opened the gate"
        number, self._gate.commits = self._gate.commits, self._gate.commits + 1
        if number >= self._gate.refuse_from:
            raise StorageError("no")
        self._is_done = True
        super().commit(name)

    def abort(self) -> None:
        if not self._is_done:
            self._is_done = True
            self._gate.aborts += 1
            self._gate.opened.set()
        super().abort()


@pytest.fixture
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block of `fill` is a pack."""
    monkeypatch.setattr(packs, "_CLOSABLE_SIZE_BYTES", 0)
    monkeypatch.setattr(packs, "_CLOSING_WASTE", 1)


def fill(open_packs: PackSet, count: int) -> None:
    for number in range(count):
        append(open_packs, random_bytes(1_000, number))


def test_a_pack_that_cannot_be_committed_is_aborted_and_told_to_nobody(vault: Vault) -> None:
    gate = Gate(vault, refuse_from=0)
    gate.opened.set()
    told: list[PackRecord] = []
    open_packs = PackSet(vault.over(gate).open(), told.append)
    append(open_packs, b"x" * 1000)
    with pytest.raises(StorageError):
        open_packs.finish()
    open_packs.abort()
    assert gate.aborts == 1
    assert told == []


@pytest.mark.usefixtures("small_packs")
def test_the_error_of_a_commit_comes_back_before_many_more_blocks_are_taken(vault: Vault) -> None:
    gate = Gate(vault, refuse_from=2)
    gate.opened.set()
    told: list[PackRecord] = []
    open_packs = PackSet(vault.over(gate).open(), told.append)
    with pytest.raises(StorageError):
        fill(open_packs, 6)
    open_packs.abort()
    assert sorted(f"packs/{record.pack_id.hex()}" for record in told) == object_names(vault.storage, ["packs"])
    assert len(told) == 2


@pytest.mark.usefixtures("small_packs")
def test_a_pack_is_told_of_once_it_is_durable_and_few_wait_for_that(vault: Vault) -> None:
    gate = Gate(vault)
    told: list[PackRecord] = []
    open_packs = PackSet(vault.over(gate).open(), told.append)

    def run() -> None:
        fill(open_packs, 6)
        open_packs.finish()

    caller = threading.Thread(target=run)
    caller.start()
    for _ in range(3):
        gate.begun.acquire()
    caller.join(0.2)
    assert caller.is_alive()
    assert not gate.begun.acquire(blocking=False)
    assert told == []
    gate.opened.set()
    caller.join()
    assert sorted(f"packs/{record.pack_id.hex()}" for record in told) == object_names(vault.storage, ["packs"])
    assert len(told) == 6


@pytest.mark.usefixtures("small_packs")
def test_an_abort_waits_for_the_commit_that_runs_and_drops_those_that_wait(vault: Vault) -> None:
    gate = Gate(vault)
    told: list[PackRecord] = []
    open_packs = PackSet(vault.over(gate).open(), told.append)
    fill(open_packs, 2)
    open_packs.abort()  # the gate opens when the waiting pack is dropped
    assert gate.aborts == 1
    assert [f"packs/{record.pack_id.hex()}" for record in told] == object_names(vault.storage, ["packs"])
    assert len(told) == 1
    open_packs.finish()
