"""Packs reach the index after the packs of their base chunks, or together with them, and never before."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from support.vault import Vault, object_names

from ohdiff.errors import IntegrityError, StorageError
from ohdiff.repository import index_feed
from ohdiff.repository.index import ChunkIndex
from ohdiff.repository.index_feed import IndexFeed
from ohdiff.repository.lost_bases import split_prefixes
from ohdiff.storage import MemoryStorage
from ohdiff_format.blocks import CODEC_DELTA, CODEC_RAW
from ohdiff_format.index import PackRecord
from ohdiff_format.pack import BlockRecord


def chunk(name: str) -> bytes:
    """The prefix of the chunk of this name."""
    return blake3(name.encode()).digest(length=16)


def pack(name: str, chunks: str, bases: str = "") -> PackRecord:
    """A pack of one block that holds chunks named by a letter each, and stands on some."""
    held, stands_on = b"".join(map(chunk, chunks)), b"".join(map(chunk, bases))
    codec, parameters = (CODEC_DELTA, b"\1") if bases else (CODEC_RAW, b"")
    block = BlockRecord(100, codec, [10] * len(chunks), held, stands_on, parameters)
    return PackRecord(blake3(name.encode()).digest(), 1000, 56, False, [block])


class Desk:
    """A feed to a real index; `told` are the packs that it reported, flush by flush."""

    def __init__(self, index: ChunkIndex) -> None:
        self.index = index
        self.told: list[set[bytes]] = []
        self.feed = IndexFeed(index, lambda packs: self.told.append({each.pack_id for each in packs}))

    def knows(self, chunks: str) -> str:
        """Those of these chunks that the index knows."""
        return "".join(name for name in chunks if self.index.contains(chunk(name)) == b"\1")


@contextmanager
def desk_of(vault: Vault) -> Iterator[Desk]:
    with vault.opened() as (_, index):
        yield Desk(index)


@pytest.fixture
def desk(vault: Vault) -> Iterator[Desk]:
    with desk_of(vault) as made:
        yield made


def test_a_pack_waits_for_the_pack_of_its_bases(vault: Vault, desk: Desk) -> None:
    desk.feed.add(pack("delta", "ab", bases="xy"))
    desk.feed.flush()
    assert desk.knows("ab") == ""
    assert object_names(vault.storage, ["index"]) == []
    desk.feed.add(pack("plain", "xyz"))
    desk.feed.flush()
    assert desk.knows("abxyz") == "abxyz"
    assert len(object_names(vault.storage, ["index"])) == 1
    assert desk.told == [{pack("delta", "ab", "xy").pack_id, pack("plain", "xyz").pack_id}]


def test_bases_that_are_indexed_already_need_no_waiting(desk: Desk) -> None:
    desk.feed.add(pack("plain", "x"))
    desk.feed.flush()
    desk.feed.add(pack("delta", "a", bases="x"))
    desk.feed.flush()
    assert desk.knows("ax") == "ax"


def test_one_missing_base_of_several_holds_a_pack_back_and_only_that(desk: Desk) -> None:
    for each in (pack("delta", "a", bases="xy"), pack("half", "x"), pack("other", "b", bases="x")):
        desk.feed.add(each)
    desk.feed.flush()
    assert desk.knows("abx") == "bx"


def test_a_chain_of_packs_waits_for_its_first(desk: Desk) -> None:
    for each in (pack("3", "c", bases="b"), pack("2", "b", bases="a"), pack("1", "a", bases="x")):
        desk.feed.add(each)
        desk.feed.flush()
    assert desk.knows("abcx") == ""
    desk.feed.add(pack("0", "x"))
    desk.feed.flush()
    assert desk.knows("abcx") == "abcx"


def test_packs_that_stand_on_each_other_are_indexed_together(vault: Vault, desk: Desk) -> None:
    desk.feed.add(pack("one", "ab", bases="c"))
    desk.feed.flush()
    assert desk.knows("ab") == ""
    desk.feed.add(pack("other", "cd", bases="b"))
    desk.feed.flush()
    assert desk.knows("abcd") == "abcd"
    assert len(object_names(vault.storage, ["index"])) == 1


def test_packs_that_stand_on_each_other_wait_together_for_a_third(desk: Desk) -> None:
    for each in (pack("one", "a", bases="bx"), pack("other", "b", bases="a"), pack("free", "z")):
        desk.feed.add(each)
    desk.feed.flush()
    assert desk.knows("abz") == "z"
    desk.feed.add(pack("third", "x"))
    desk.feed.flush()
    assert desk.knows("abx") == "abx"


def test_a_pack_may_stand_on_itself(desk: Desk) -> None:
    desk.feed.add(pack("own", "ab", bases="a"))
    desk.feed.flush()
    assert desk.knows("ab") == "ab"


def test_a_run_whose_bases_never_came_does_not_end_well(desk: Desk) -> None:
    desk.feed.add(pack("delta", "a", bases="x"))
    desk.feed.add(pack("free", "z"))
    with pytest.raises(IntegrityError):
        desk.feed.finish()
    assert desk.knows("az") == "z"
    desk.feed.add(pack("plain", "x"))
    desk.feed.finish()
    assert desk.knows("axz") == "axz"


def test_nothing_is_stored_for_nothing(vault: Vault, desk: Desk) -> None:
    desk.feed.flush()
    desk.feed.add(pack("delta", "a", bases="x"))
    desk.feed.flush()
    assert object_names(vault.storage, ["index"]) == []
    assert desk.told == []


def test_few_packs_wait_for_more_and_many_do_not(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_feed, "_PACKS_PER_INDEX", 3)
    monkeypatch.setattr(index_feed, "_CHUNKS_PER_INDEX", 10)
    desk.feed.add(pack("1", "a"))
    desk.feed.add(pack("2", "b"))
    desk.feed.flush_if_many()
    assert desk.knows("ab") == ""
    desk.feed.add(pack("3", "c"))
    desk.feed.flush_if_many()
    assert desk.knows("abc") == "abc"
    desk.feed.add(pack("4", "defghijklm"))
    desk.feed.flush_if_many()
    assert desk.knows("dm") == "dm"


class FullStorage(MemoryStorage):
    """A storage with no room for index objects, as long as it is full."""

    is_full = False

    def write(self, name: str, data: bytes | bytearray | memoryview) -> None:
        if self.is_full and name.startswith("index/"):
            raise StorageError("no space left", item=name)
        super().write(name, data)


def test_an_index_object_that_cannot_be_stored_lets_nothing_of_it_be_known() -> None:
    storage = FullStorage("full")
    with desk_of(Vault(storage).create()) as desk:
        desk.feed.add(pack("plain", "x"))
        desk.feed.add(pack("delta", "a", bases="x"))
        desk.feed.add(pack("waiting", "b", bases="y"))
        storage.is_full = True
        with pytest.raises(StorageError):
            desk.feed.flush()
        assert desk.knows("axb") == ""
        assert desk.told == []
        storage.is_full = False
        # What comes later stands by itself or is held back: never on what failed.
        desk.feed.add(pack("later", "c", bases="x"))
        desk.feed.add(pack("third", "y"))
        desk.feed.flush()
        known = desk.knows("abcxy")
        assert "b" in known
        assert "y" in known
        assert ("c" in known) <= ("x" in known)


def test_packs_may_come_from_any_thread_while_others_are_indexed(desk: Desk) -> None:
    names = [f"pack {number}" for number in range(60)]
    records = [pack(name, "") for name in names]
    adders = [
        threading.Thread(target=lambda part=part: [desk.feed.add(each) for each in part])
        for part in (records[:20], records[20:40], records[40:])
    ]
    for adder in adders:
        adder.start()
    while any(adder.is_alive() for adder in adders):
        desk.feed.flush()
    desk.feed.flush()
    assert sum(map(len, desk.told)) == len(set().union(*desk.told)) == len(records)


@given(
    packs=st.lists(st.tuples(st.sets(st.sampled_from("abcdefgh"), min_size=1), st.sets(st.sampled_from("abcdefgh")))),
    flushes=st.sets(st.integers(0, 12)),
)
def test_at_no_time_is_a_chunk_known_whose_base_is_not(
    packs: Sequence[tuple[set[str], set[str]]], flushes: set[int]
) -> None:
    with desk_of(Vault(MemoryStorage("any")).create()) as desk:
        records = {}
        for number, (chunks, bases) in enumerate(packs):
            record = pack(str(number), "".join(sorted(chunks)), "".join(sorted(bases)))
            records[record.pack_id] = record
            desk.feed.add(record)
            if number in flushes:
                desk.feed.flush()
        desk.feed.flush()
        indexed = [records[pack_id] for told in desk.told for pack_id in told]
        held: set[bytes] = set()
        for told in desk.told:
            for pack_id in told:
                held |= set(split_prefixes(records[pack_id].blocks[0].chunk_prefixes))
            for pack_id in told:
                assert held >= set(split_prefixes(records[pack_id].blocks[0].base_prefixes))
        # And nothing is held back without need: no packs of those that wait have all that they stand on.
        waiting = [record for record in records.values() if record not in indexed]
        while waiting:
            known = held | _prefixes(waiting)
            kept = [each for each in waiting if known >= set(split_prefixes(each.blocks[0].base_prefixes))]
            assert len(kept) < len(waiting)
            waiting = kept


def _prefixes(records: list[PackRecord]) -> set[bytes]:
    return {prefix for record in records for prefix in split_prefixes(record.blocks[0].chunk_prefixes)}


def test_prefixes_are_split_into_sixteen_bytes_each() -> None:
    parts = split_prefixes(bytes(range(48)))
    assert b"".join(parts) == bytes(range(48))
    assert all(len(one) == 16 and one != other for one, other in pairwise(parts))
