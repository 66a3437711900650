"""The sorted id table against a dict: building, merging, searching, damage, and use from several threads.

The header's checksum is computed here a second time, so that files with sound checksums and hostile contents can be
made. Row bytes carry no checksum: damage there may give wrong answers, which the callers catch by the chunk id.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import random
import resource
import struct
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ohdiff._kernels import IdTable, merge_id_tables, write_id_table

TAG = bytes(range(32))
HEADER_FIELDS = {
    "magic": "8s",
    "version": "I",
    "key_size": "I",
    "value_size": "I",
    "reserved": "I",
    "count": "Q",
    "tag": "32s",
    "rows_offset": "Q",
    "filter_offset": "Q",
    "directory_offset": "Q",
    "file_size": "Q",
    "block_count": "I",
    "bucket_count": "I",
    "sections_checksum": "Q",
    "header_checksum": "Q",
}
HEADER = struct.Struct("<" + "".join(HEADER_FIELDS.values()))
WORD_MAX = 2**32 - 1
Rows = list[tuple[bytes, bytes]]


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def uniform_keys(count: int, key_size: int = 16, seed: str = "") -> list[bytes]:
    return pieces(hashlib.shake_128(seed.encode()).digest(count * key_size), key_size)


def numbered(keys: list[bytes], value_size: int = 12) -> Rows:
    return [(key, struct.pack("<I", number).ljust(value_size, b"\x5a")) for number, key in enumerate(keys)]


def write(path: Path, rows: Rows, key_size: int = 16, value_size: int = 12) -> int:
    keys, values = b"".join(key for key, _ in rows), b"".join(value for _, value in rows)
    return write_id_table(path, keys, values, key_size, value_size, TAG)


def first_of_equal(rows: Rows) -> dict[bytes, bytes]:
    return dict(reversed(rows))


def answers(table: IdTable, keys: list[bytes]) -> list[bytes | None]:
    found, values = table.find(b"".join(keys))
    assert len(found) == len(keys)
    split = pieces(values, table.value_size)
    assert all(hit or value == bytes(table.value_size) for hit, value in zip(found, split, strict=True))
    return [value if hit else None for hit, value in zip(found, split, strict=True)]


def all_rows(table: IdTable, start: int = 0, count: int = 2**40) -> Rows:
    keys, values = table.iterate(start, count)
    return list(zip(pieces(keys, table.key_size), pieces(values, table.value_size), strict=True))


def assert_equals_model(path: Path, model: dict[bytes, bytes], absent: list[bytes]) -> None:
    table = IdTable(path)
    assert table.count == len(model)
    assert all_rows(table) == sorted(model.items())
    probes = [*model, *absent, *model]
    random.Random(7).shuffle(probes)
    assert answers(table, probes) == [model.get(key) for key in probes]
    assert [answers(table, [key])[0] for key in probes[:50]] == [model.get(key) for key in probes[:50]]


def biased(value: bytes, bias: int) -> bytes:
    return struct.pack("<I", struct.unpack_from("<I", value)[0] + bias) + value[4:]


# Few distinct bytes make equal keys, shared beginnings and shared endings likely.
keys_16 = st.one_of(
    st.binary(min_size=16, max_size=16), st.lists(st.sampled_from([0, 1, 255]), min_size=16, max_size=16).map(bytes)
)
values_12 = st.binary(min_size=12, max_size=12).map(lambda value: value[:3] + b"\0" + value[4:])
runs_of_rows = st.lists(st.lists(st.tuples(keys_16, values_12), max_size=60), min_size=1, max_size=6)


@settings(max_examples=150, deadline=None)
@given(
    runs=runs_of_rows,
    biases=st.lists(st.integers(0, WORD_MAX - 2**24), min_size=6, max_size=6),
    absent=st.lists(keys_16),
)
def test_written_and_merged_tables_answer_as_a_dict_does(
    tmp_path_factory: pytest.TempPathFactory, runs: list[Rows], biases: list[int], absent: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("tables")
    merged: dict[bytes, bytes] = {}
    for number, run in enumerate(runs):
        model = first_of_equal(run)
        assert write(folder / str(number), run) == len(model)
        assert_equals_model(folder / str(number), model, absent)
        merged = {key: biased(value, biases[number]) for key, value in model.items()} | merged
    inputs = [str(folder / str(number)) for number in range(len(runs))]
    assert merge_id_tables(inputs, folder / "merged", biases[: len(runs)], TAG) == len(merged)
    assert_equals_model(folder / "merged", merged, absent)


@pytest.mark.parametrize(("key_size", "value_size"), [(16, 4), (16, 12), (32, 12), (32, 256)])
def test_every_row_shape_keeps_many_buckets_apart(tmp_path: Path, key_size: int, value_size: int) -> None:
    rows = numbered(uniform_keys(20_000, key_size), value_size)
    write(tmp_path / "table", rows, key_size, value_size)
    assert_equals_model(tmp_path / "table", dict(rows), uniform_keys(20_000, key_size, "absent"))
    table = IdTable(tmp_path / "table")
    assert (table.key_size, table.value_size, table.tag) == (key_size, value_size, TAG)


def test_a_merge_in_tiers_equals_one_table_of_all_rows(tmp_path: Path) -> None:
    rows = numbered(uniform_keys(60_000))
    for number in range(6):
        write(tmp_path / f"run{number}", numbered(uniform_keys(60_000)[number * 10_000 : (number + 1) * 10_000]))
    for tier in range(2):
        runs = [tmp_path / f"run{tier * 3 + number}" for number in range(3)]
        merge_id_tables(runs, tmp_path / f"tier{tier}", [0, 10_000, 20_000], TAG)
    merge_id_tables([tmp_path / "tier0", tmp_path / "tier1"], tmp_path / "merged", [0, 30_000], TAG)
    write(tmp_path / "whole", rows)
    assert (tmp_path / "merged").read_bytes() == (tmp_path / "whole").read_bytes()


def test_more_keys_than_one_pass_holds_are_answered_in_their_places(tmp_path: Path) -> None:
    rows = numbered(uniform_keys(3000))
    write(tmp_path / "table", rows)
    keys = b"".join(key for key, _ in rows)
    found, values = IdTable(tmp_path / "table").find(keys * 400)
    assert found == b"\1" * 1_200_000
    assert values == b"".join(value for _, value in rows) * 400


def test_an_empty_table_holds_nothing_and_merges(tmp_path: Path) -> None:
    assert write(tmp_path / "empty", []) == 0
    assert_equals_model(tmp_path / "empty", {}, uniform_keys(100))
    assert IdTable(tmp_path / "empty").find(b"") == (b"", b"")
    assert merge_id_tables([tmp_path / "empty"] * 2, tmp_path / "merged", [0, WORD_MAX], TAG) == 0
    assert_equals_model(tmp_path / "merged", {}, uniform_keys(100))


@pytest.mark.parametrize("key", [bytes(16), b"\xff" * 16, bytes(range(16))])
def test_a_table_of_one_row_holds_just_that_row(tmp_path: Path, key: bytes) -> None:
    write(tmp_path / "table", [(key, b"only one row")])
    assert_equals_model(tmp_path / "table", {key: b"only one row"}, [*uniform_keys(100), key[:15] + b"\x77"])


@pytest.mark.parametrize("shared", [4, 8, 12])
def test_keys_that_share_their_beginning_stay_correct(tmp_path: Path, shared: int) -> None:
    # 30,000 rows in one bucket are more than is read at once.
    rows = numbered([b"\xa5" * shared + key[shared:] for key in uniform_keys(30_000)])
    absent = [b"\xa5" * shared + key[shared:] for key in uniform_keys(300, seed="absent")]
    write(tmp_path / "table", rows)
    table = IdTable(tmp_path / "table")
    probes = [key for key, _ in rows[::100]] + absent + uniform_keys(300, seed="elsewhere")
    model = dict(rows)
    assert answers(table, probes) == [model.get(key) for key in probes]
    assert all_rows(table) == sorted(model.items())


def test_the_filter_passes_every_present_key_and_few_others(tmp_path: Path) -> None:
    rows = numbered(uniform_keys(50_000))
    write(tmp_path / "table", rows)
    table = IdTable(tmp_path / "table")
    table.find(b"".join(key for key, _ in rows))
    assert table.filter_pass_count == 50_000
    table.find(b"".join(uniform_keys(50_000, seed="absent")))
    assert table.filter_pass_count - 50_000 < 500
    assert table.resident_bytes < 50_000 * 13 / 8


def test_iterate_cuts_its_range_as_a_slice_does(tmp_path: Path) -> None:
    rows = sorted(numbered(uniform_keys(20_000)))
    write(tmp_path / "table", rows)
    table = IdTable(tmp_path / "table")
    for start, count in [(0, 0), (0, 1), (123, 15_000), (19_999, 1), (19_999, 2), (20_000, 5), (2**60, 2**62)]:
        assert all_rows(table, start, count) == rows[start : start + count]
    with pytest.raises(ValueError, match="not negative"):
        table.iterate(-1, 1)


def test_every_kind_of_buffer_and_path_is_taken(tmp_path: Path) -> None:
    keys, values = b"".join(uniform_keys(10)), bytes(120)
    path = os.fsencode(tmp_path) + b"/not utf-8: \xff"
    write_id_table(path, memoryview(keys), bytearray(values), 16, 12, TAG)
    for same in (path, os.fsdecode(path), Path(os.fsdecode(path))):
        assert IdTable(same).find(memoryview(bytearray(keys)))[0] == b"\1" * 10
    with pytest.raises(TypeError):
        write_id_table(path, "text", values, 16, 12, TAG)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key_size", "value_size", "keys", "values", "tag"),
    [
        (20, 12, 20, 12, 32),
        (0, 12, 0, 0, 32),
        (16, 0, 16, 0, 32),
        (16, 6, 16, 6, 32),
        (16, 260, 16, 260, 32),
        (16, 12, 15, 12, 32),
        (16, 12, 32, 12, 32),
        (16, 12, 16, 13, 32),
        (16, 12, 16, 12, 31),
        (2**63, 12, 16, 12, 32),
    ],
)
def test_arguments_that_do_not_fit_together_are_refused_before_anything_is_written(
    tmp_path: Path, key_size: int, value_size: int, keys: int, values: int, tag: int
) -> None:
    with pytest.raises(ValueError, match=r"key_size|value_size|rows|tag"):
        write_id_table(tmp_path / "table", bytes(keys), bytes(values), key_size, value_size, bytes(tag))
    assert not (tmp_path / "table").exists()


def test_find_refuses_a_part_of_a_key_and_a_closed_table(tmp_path: Path) -> None:
    write(tmp_path / "table", numbered(uniform_keys(10)))
    table = IdTable(tmp_path / "table")
    with pytest.raises(ValueError, match="multiple of key_size"):
        table.find(bytes(17))
    table.close()
    table.close()
    with pytest.raises(ValueError, match="closed"):
        table.find(bytes(16))
    with pytest.raises(ValueError, match="closed"):
        _ = table.count


def test_system_errors_carry_errno_and_file_name(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing" / "table")
    for attempt in (
        lambda: IdTable(missing),
        lambda: write(Path(missing), []),
        lambda: merge_id_tables([missing], tmp_path / "merged", [0], TAG),
    ):
        with pytest.raises(FileNotFoundError) as caught:
            attempt()
        assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, missing)
    with pytest.raises(IsADirectoryError) as caught_directory:
        IdTable(tmp_path)
    assert caught_directory.value.filename == str(tmp_path)


def test_a_write_that_fails_half_way_is_an_os_error_and_leaves_no_table(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)) as caught:
            write(tmp_path / "table", numbered(uniform_keys(1000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(tmp_path / "table"))
    with pytest.raises(ValueError, match="not a sound id table"):
        IdTable(tmp_path / "table")


@pytest.mark.parametrize("bias", [-1, 2**32 - 5, 2**63 - 1, -(2**63)])
def test_a_biased_word_that_overflows_is_refused(tmp_path: Path, bias: int) -> None:
    write(tmp_path / "table", numbered(uniform_keys(10)))
    with pytest.raises(ValueError, match="does not fit 32 bits"):
        merge_id_tables([tmp_path / "table"], tmp_path / "merged", [bias], TAG)
    with pytest.raises(ValueError, match="not a sound id table"):
        IdTable(tmp_path / "merged")


def test_a_merge_biases_up_and_down_to_the_last_value(tmp_path: Path) -> None:
    rows = numbered(uniform_keys(10))
    write(tmp_path / "low", rows)
    merge_id_tables([tmp_path / "low"], tmp_path / "high", [WORD_MAX - 9], b"\7" * 32)
    assert dict(all_rows(IdTable(tmp_path / "high"))) == {key: biased(value, WORD_MAX - 9) for key, value in rows}
    assert IdTable(tmp_path / "high").tag == b"\7" * 32
    merge_id_tables([tmp_path / "high"], tmp_path / "low again", [9 - WORD_MAX], TAG)
    assert (tmp_path / "low again").read_bytes() == (tmp_path / "low").read_bytes()


def test_a_merge_of_unfit_inputs_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "wide", numbered(uniform_keys(10, 32)), 32)
    write(tmp_path / "narrow", numbered(uniform_keys(10)))
    before = (tmp_path / "narrow").read_bytes()
    with pytest.raises(ValueError, match="differ in key or value size"):
        merge_id_tables([tmp_path / "wide", tmp_path / "narrow"], tmp_path / "merged", [0, 0], TAG)
    with pytest.raises(ValueError, match="one bias for each"):
        merge_id_tables([tmp_path / "narrow"], tmp_path / "merged", [0, 0], TAG)
    with pytest.raises(ValueError, match="at least one input"):
        merge_id_tables([], tmp_path / "merged", [], TAG)
    (tmp_path / "link").symlink_to(tmp_path / "narrow")
    with pytest.raises(ValueError, match="over its input"):
        merge_id_tables([tmp_path / "narrow"], tmp_path / "link", [0], TAG)
    assert (tmp_path / "narrow").read_bytes() == before


def test_a_longer_file_at_the_path_leaves_no_trace(tmp_path: Path) -> None:
    write(tmp_path / "table", numbered(uniform_keys(5000)))
    rows = numbered(uniform_keys(10))
    write(tmp_path / "table", rows)
    assert_equals_model(tmp_path / "table", dict(rows), uniform_keys(100, seed="absent"))


def checksum(data: bytes) -> int:
    """The table's checksum from its description: a second implementation."""
    mask, state = 2**64 - 1, 0x27D4EB2F165667C5
    for (word,) in struct.iter_unpack("<Q", data):
        state ^= (word * 0x9E3779B185EBCA87) & mask
        state = (((state << 27) | (state >> 37)) * 0xC2B2AE3D27D4EB4F + 0x165667B19E3779F9) & mask
    return state ^ (state >> 32)


def header_of(table: bytes) -> dict[str, int | bytes]:
    return dict(zip(HEADER_FIELDS, HEADER.unpack_from(table), strict=True))


def with_sound_checksums(table: bytes, **changes: int | bytes) -> bytes:
    header = header_of(table)
    header["sections_checksum"] = checksum(table[header_of(table)["filter_offset"] :])  # type: ignore[misc]
    body = HEADER.pack(*(header | changes).values())[:-8]
    return body + struct.pack("<Q", checksum(body)) + table[HEADER.size :]


@pytest.fixture
def sound_table(tmp_path: Path) -> bytes:
    write(tmp_path / "sound", numbered(uniform_keys(700)))
    return (tmp_path / "sound").read_bytes()


def use_fully(path: Path) -> None:
    """Open and use a table in every way; ValueError is the only error that may come of it."""
    table = IdTable(path)
    table.find(b"".join(uniform_keys(700)) + bytes(16) + b"\xff" * 16)
    table.iterate(0, 2**40)
    merge_id_tables([path, path], path.with_suffix(".merged"), [0, 0], TAG)


def assert_refused(path: Path, content: bytes, match: str = "not a sound id table") -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError, match=match) as caught:
        IdTable(path)
    assert str(path) in str(caught.value)


def test_the_second_checksum_agrees_with_the_first(sound_table: bytes) -> None:
    assert with_sound_checksums(sound_table) == sound_table


def test_a_flipped_bit_in_header_filter_or_directory_is_refused(tmp_path: Path, sound_table: bytes) -> None:
    header = header_of(sound_table)
    sections = range(header["filter_offset"], len(sound_table))  # type: ignore[arg-type]
    for position in [*range(HEADER.size), *sections]:
        damaged = bytearray(sound_table)
        damaged[position] ^= 1 << (position % 8)
        assert_refused(tmp_path / "damaged", bytes(damaged))


def test_a_file_of_another_length_is_refused(tmp_path: Path, sound_table: bytes) -> None:
    for length in [*range(0, len(sound_table), 61), len(sound_table) - 1]:
        assert_refused(tmp_path / "damaged", sound_table[:length])
        with pytest.raises(ValueError, match="not a sound id table"):
            merge_id_tables([tmp_path / "damaged"], tmp_path / "merged", [0], TAG)
    assert_refused(tmp_path / "damaged", sound_table + b"\0")


@pytest.mark.parametrize(
    "changes",
    [
        {"magic": b"OTHERFIL"},
        {"version": 2},
        {"key_size": 0},
        {"key_size": 32},
        {"key_size": WORD_MAX},
        {"value_size": 0},
        {"value_size": 16},
        {"count": 0},
        {"count": 701},
        {"rows_offset": 2**63},
        {"filter_offset": 0},
        {"directory_offset": 2**64 - 1},
        {"file_size": 2**62},
        {"block_count": 0},
        {"block_count": WORD_MAX},
        {"bucket_count": 0},
        {"bucket_count": WORD_MAX},
        {"sections_checksum": 1},
    ],
)
def test_a_hostile_header_with_a_sound_checksum_is_refused(
    tmp_path: Path, sound_table: bytes, changes: dict[str, int | bytes]
) -> None:
    assert_refused(tmp_path / "damaged", with_sound_checksums(sound_table, **changes))


@pytest.mark.parametrize("count", [2**32, 2**60, 2**64 - 1])
def test_a_row_count_past_the_limit_is_refused_before_it_is_reckoned_with(
    tmp_path: Path, sound_table: bytes, count: int
) -> None:
    assert_refused(tmp_path / "damaged", with_sound_checksums(sound_table, count=count), "row count is too large")


@pytest.mark.parametrize("starts", [{0: 1}, {1: WORD_MAX}, {3: 700}, {5: 0}, {11: 0}, {11: WORD_MAX}])
def test_a_hostile_directory_with_a_sound_checksum_is_refused(
    tmp_path: Path, sound_table: bytes, starts: dict[int, int]
) -> None:
    assert header_of(sound_table)["bucket_count"] == 11
    damaged = bytearray(sound_table)
    for bucket, start in starts.items():
        struct.pack_into("<I", damaged, header_of(sound_table)["directory_offset"] + 4 * bucket, start)  # type: ignore[operator]
    assert_refused(tmp_path / "damaged", with_sound_checksums(bytes(damaged)), "directory is out of order")


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damaged_rows_never_do_more_than_mislead(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("damaged") / "table"
    write(path, numbered(uniform_keys(700)))
    table = bytearray(path.read_bytes())
    rows_end = HEADER.size + 700 * 28
    start = data.draw(st.integers(HEADER.size, rows_end - 1))
    patch = data.draw(st.binary(min_size=1, max_size=rows_end - start))
    table[start : start + len(patch)] = patch
    path.write_bytes(table)
    try:
        use_fully(path)
    except ValueError as error:
        assert "out of order" in str(error) or "does not fit" in str(error)


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=600), is_prefixed=st.booleans())
def test_random_bytes_are_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes, is_prefixed: bool) -> None:
    assert_refused(tmp_path_factory.mktemp("random") / "table", b"OHDIDTAB\1\0\0\0" * is_prefixed + content)


def test_rows_out_of_order_stop_a_merge_and_name_the_input(tmp_path: Path, sound_table: bytes) -> None:
    damaged = bytearray(sound_table)
    damaged[HEADER.size + 28 * 400 : HEADER.size + 28 * 401] = bytes(28)
    (tmp_path / "damaged").write_bytes(damaged)
    with pytest.raises(ValueError, match="damaged: not a sound id table: its rows are out of order"):
        merge_id_tables([tmp_path / "sound", tmp_path / "damaged"], tmp_path / "merged", [0, 0], TAG)


def test_a_file_cut_short_while_open_is_a_value_error(tmp_path: Path) -> None:
    rows = numbered(uniform_keys(5000))
    write(tmp_path / "table", rows)
    table = IdTable(tmp_path / "table")
    os.truncate(tmp_path / "table", 200)
    with pytest.raises(ValueError, match="ends early"):
        table.find(b"".join(key for key, _ in rows))
    with pytest.raises(ValueError, match="ends early"):
        table.iterate(0, 5000)


def test_threads_search_at_once_and_outlive_a_close(tmp_path: Path) -> None:
    rows = numbered(uniform_keys(50_000))
    write(tmp_path / "table", rows)
    table = IdTable(tmp_path / "table")
    start, some_turns, ends = threading.Barrier(4), threading.Semaphore(0), []

    def search(seed: int) -> None:
        sample = random.Random(seed).sample(rows, 5000)
        keys = b"".join(key for key, _ in sample) + b"".join(uniform_keys(5000, seed=f"absent {seed}"))
        expected = (b"\1" * 5000 + bytes(5000), b"".join(value for _, value in sample) + bytes(12 * 5000))
        start.wait()
        try:
            while table.find(keys) == expected:
                some_turns.release()
            ends.append("a wrong answer")
        except ValueError as error:
            ends.append(str(error))
        finally:
            some_turns.release(20)

    threads = [threading.Thread(target=search, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        some_turns.acquire()
    table.close()
    for thread in threads:
        thread.join()
    assert ends == ["the id table is closed"] * 4


def test_the_scale_benchmark_meets_its_bounds_on_a_small_table(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "bench" / "index_scale.py"
    spec = importlib.util.spec_from_file_location("index_scale", source)
    assert spec is not None
    assert spec.loader is not None
    index_scale = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(index_scale)
    figures = index_scale.measure(tmp_path, entries=60_000, run_rows=5000, lookups=20_000)
    assert figures["entries"] == 60_000
    assert figures["false positives %"] < 1
    assert figures["MiB per TiB at 64 KiB"] < 64
