"""The cache of resemblance: real chunks that were edited, its folder and lock, and faults that are not raised."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ohdiff._kernels import ResemblanceTable
from ohdiff.chunking.cpu import CpuEngine
from ohdiff.chunking.rule import ChunkingRule
from ohdiff.delta.resemblance import CHUNK_SIZE_BYTES_MIN, ResemblanceCache

TAG = bytes(range(32))
ENGINE = CpuEngine(ChunkingRule.from_key(TAG, avg_size=32 << 10), TAG)
FILES = {"resemblance", "resemblance.lock"}

HOLD_THE_CACHE = """
import sys
from pathlib import Path
from ohdiff.delta.resemblance import ResemblanceCache
cache = ResemblanceCache.open(Path(sys.argv[1]), bytes(range(32)))
print(cache.is_written, flush=True)
sys.stdin.read()
cache.remember(bytes(range(1, 49)), b"0123456789abcdef")
cache.close()
"""


def features(data: bytes) -> bytes:
    return ENGINE.features(data, [len(data)])


def prefix(name: str) -> bytes:
    return name.encode().ljust(16, b".")


def text(seed: int, size: int) -> bytes:
    chance = random.Random(seed)
    words = [chance.randbytes(chance.randrange(2, 9)).hex().encode() for _ in range(3000)]
    return b" ".join(chance.choices(words, k=size // 5))[:size]


def edited(data: bytes, edits: int, seed: int) -> bytes:
    chance = random.Random(seed)
    changed = bytearray(data)
    for _ in range(edits):
        at = chance.randrange(len(changed))
        changed[at : at + chance.randrange(30)] = chance.randbytes(chance.randrange(30))
    return bytes(changed)


@contextlib.contextmanager
def remembered(folder: Path | None, names: list[str], seed: int = 1) -> Iterator[ResemblanceCache]:
    with ResemblanceCache.open(folder, TAG) as cache:
        for number, name in enumerate(names):
            cache.remember(features(text(seed + number, 20_000)), prefix(name))
        yield cache


@pytest.mark.parametrize("size", [CHUNK_SIZE_BYTES_MIN, 32 << 10, 128 << 10])
def test_an_edited_chunk_finds_the_one_it_came_from(size: int) -> None:
    originals = [text(seed, size) for seed in range(100)]
    with ResemblanceCache.open(None, TAG) as cache:
        for number, data in enumerate(originals):
            cache.remember(features(data), prefix(str(number)))
        changed = [edited(data, 3, number) for number, data in enumerate(originals)]
        together = b"".join(features(data) for data in changed)
        found = cache.nearest(together)
        assert found == [prefix(str(number)) for number in range(100)]
        assert cache.nearest(b"".join(features(text(seed, size)) for seed in range(500, 600))) == [None] * 100
        counted = cache.nearest_counted(together, equal_min=1)
        assert [answer and answer[0] for answer in counted] == found
        assert all(answer is not None and 2 <= answer[1] <= 12 for answer in counted)


def test_fewer_equal_features_than_demanded_are_no_resemblance() -> None:
    with ResemblanceCache.open(None, TAG) as cache:
        original = text(1, 64 << 10)
        cache.remember(features(original), prefix("original"))
        half = original[: 32 << 10] + text(2, 32 << 10)
        (answer,) = cache.nearest_counted(features(half), equal_min=1)
        assert answer is not None
        assert 1 <= answer[1] < 12
        assert cache.nearest(features(half), equal_min=answer[1]) == [prefix("original")]
        assert cache.nearest(features(half), equal_min=answer[1] + 1) == [None]


def test_a_chunk_without_samples_resembles_nothing() -> None:
    with ResemblanceCache.open(None, TAG) as cache:
        cache.remember(bytes(48), prefix("empty"))
        assert cache.chunk_count == 0
        assert cache.nearest(bytes(96)) == [None, None]
        assert cache.nearest(b"") == []


def test_what_was_remembered_is_found_by_the_next_to_open(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "for it"
    with remembered(folder, ["one", "two"]) as cache:
        assert cache.is_written
    assert set(os.listdir(folder)) == FILES
    with ResemblanceCache.open(folder, TAG) as again:
        assert again.chunk_count == 2
        assert again.nearest(features(text(1, 20_000)) + features(text(2, 20_000))) == [prefix("one"), prefix("two")]
        assert 0 < again.resident_size_bytes < 500_000


def test_a_flush_keeps_what_a_killed_run_had_remembered(tmp_path: Path) -> None:
    with remembered(tmp_path, ["one"]) as cache:
        cache.flush()
        reader = ResemblanceTable(tmp_path / "resemblance", 128, TAG, False)
        assert reader.chunk_count == 1


def test_a_cache_under_another_tag_is_begun_anew(tmp_path: Path) -> None:
    with remembered(tmp_path, ["one"]):
        pass
    with ResemblanceCache.open(tmp_path, bytes(32)) as other:
        assert other.chunk_count == 0
        assert other.nearest(features(text(1, 20_000))) == [None]


def test_a_second_cache_reads_and_keeps_its_own_to_itself(tmp_path: Path) -> None:
    with remembered(tmp_path, ["one"]):
        pass
    with ResemblanceCache.open(tmp_path, TAG) as first:
        with remembered(tmp_path, ["two"], seed=2) as second:
            assert first.is_written
            assert not second.is_written
            assert second.nearest(features(text(1, 20_000)) + features(text(2, 20_000))) == [
                prefix("one"),
                prefix("two"),
            ]
        assert first.nearest(features(text(2, 20_000))) == [None]
    with ResemblanceCache.open(tmp_path, TAG) as third:
        assert third.is_written
        assert third.chunk_count == 1


def test_another_process_may_hold_the_cache(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD_THE_CACHE, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        with remembered(tmp_path, ["mine"]) as cache:
            assert not cache.is_written
        holder.communicate("")
    assert holder.returncode == 0
    with ResemblanceCache.open(tmp_path, TAG) as cache:
        assert cache.is_written
        assert cache.nearest(bytes(range(1, 49))) == [b"0123456789abcdef"]
        assert cache.nearest(features(text(1, 20_000))) == [None]


def test_a_file_in_the_place_of_the_folder_leaves_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with remembered(tmp_path / "file", ["one"]) as cache:
        assert not cache.is_written
        assert cache.nearest(features(text(1, 20_000))) == [prefix("one")]
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_folder_in_the_place_of_the_table_leaves_memory(tmp_path: Path) -> None:
    (tmp_path / "resemblance").mkdir()
    with remembered(tmp_path, ["one"]) as cache:
        assert not cache.is_written
        assert cache.nearest(features(text(1, 20_000))) == [prefix("one")]
    assert os.listdir(tmp_path / "resemblance") == []


def test_a_folder_that_vanishes_costs_nothing_but_what_was_remembered(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    with remembered(folder, ["one"]) as cache:
        (folder / "resemblance.lock").unlink()
        folder.rmdir()
        cache.flush()
        assert cache.nearest(features(text(1, 20_000))) == [prefix("one")]
    assert not folder.exists()


@pytest.mark.parametrize("bad", [{"tag": bytes(31)}, {"tag": TAG, "chunk_count_max": 5}])
def test_a_wrong_argument_is_refused_and_leaves_no_lock(tmp_path: Path, bad: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        ResemblanceCache.open(tmp_path, **bad)  # type: ignore[arg-type]
    with (tmp_path / "resemblance.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_rows_that_do_not_fit_are_refused() -> None:
    with ResemblanceCache.open(None, TAG) as cache:
        with pytest.raises(ValueError):
            cache.remember(bytes(48), bytes(15))
        with pytest.raises(ValueError):
            cache.nearest(bytes(47))
        with pytest.raises(ValueError):
            cache.nearest(bytes(48), equal_min=13)


def test_a_closed_cache_refuses_use_and_may_be_closed_again(tmp_path: Path) -> None:
    with remembered(tmp_path, ["one"]) as cache:
        pass
    cache.close()
    assert not cache.is_written
    with pytest.raises(ValueError, match="closed"):
        cache.nearest(bytes(48))
    with pytest.raises(ValueError, match="closed"):
        cache.remember(bytes(48), bytes(16))
