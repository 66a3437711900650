"""The table of resemblance against a list of rows: exact while it is sparse, and sound however full it is."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ohdiff._kernels import ResemblanceTable

TAG = bytes(32)
FEATURES = 12
INDEXED = 8
ROWS_PER_FEATURE = 4
Features = tuple[int, ...]

# Few values make shared features likely; those at the ends of the range are where arithmetic would slip.
values = st.sampled_from([0, 1, 2, 3, 2**31, 2**32 - 2, 2**32 - 1])
rows = st.tuples(*[values] * FEATURES)
adding = st.tuples(st.just("add"), st.lists(rows, min_size=1, max_size=6))
asking = st.tuples(st.just("ask"), st.lists(rows, min_size=1, max_size=6))
reopening = st.tuples(st.just("reopen"), st.just([]))
steps = st.lists(st.one_of(adding, asking, reopening), max_size=30)


def packed(features: list[Features]) -> bytes:
    return b"".join(struct.pack("<12I", *row) for row in features)


def prefix_of(number: int) -> bytes:
    return struct.pack(">QQ", number, ~number % 2**64)


def equal_count(left: Features, right: Features) -> int:
    return sum(a == b for a, b in zip(left, right, strict=True))


class Model:
    """All rows ever added with samples, in order."""

    def __init__(self) -> None:
        self.rows: list[Features] = []

    def add(self, features: list[Features]) -> bytes:
        """The prefixes for these rows: numbered, where a row is kept."""
        prefixes = b""
        for row in features:
            prefixes += prefix_of(len(self.rows))
            if any(row):
                self.rows.append(row)
        return prefixes

    def candidates(self, asked: Features) -> set[int]:
        """The newest few of the rows that have one of the indexed features."""
        found: set[int] = set()
        for place in range(INDEXED):
            having = [number for number, row in enumerate(self.rows) if row[place] == asked[place]]
            found.update(having[-ROWS_PER_FEATURE:])
        return found

    def nearest(self, asked: Features, equal_min: int) -> tuple[bytes, int]:
        best = max(((equal_count(asked, self.rows[n]), n) for n in self.candidates(asked)), default=(0, 0))
        return (prefix_of(best[1]), best[0]) if any(asked) and best[0] >= equal_min else (bytes(16), 0)


def answers(table: ResemblanceTable, asked: list[Features], equal_min: int) -> list[tuple[bytes, int]]:
    prefixes, counts = table.find(packed(asked), equal_min)
    return [(prefixes[16 * row : 16 * row + 16], equal) for row, equal in enumerate(counts)]


@settings(max_examples=200)
@given(steps=steps, equal_min=st.integers(1, 12))
def test_a_sparse_table_answers_as_a_list_of_rows_does(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, list[Features]]], equal_min: int
) -> None:
    path = tmp_path_factory.mktemp("table") / "table"
    table, model = ResemblanceTable(path, 4096, TAG), Model()
    for step, features in steps:
        if step == "add":
            table.add(packed(features), model.add(features))
        elif step == "ask":
            assert answers(table, features, equal_min) == [model.nearest(row, equal_min) for row in features]
        else:
            table.flush()
            table.close()
            table = ResemblanceTable(path, 4096, TAG)
        assert table.chunk_count == len(model.rows)
    assert answers(table, model.rows, 1) == [model.nearest(row, 1) for row in model.rows]
    table.close()


@settings(max_examples=60)
@given(steps=steps, seed=st.integers(0, 2**32 - 1), bound=st.sampled_from([128, 256, 1024]))
def test_however_full_a_table_is_it_answers_with_a_row_that_it_still_holds(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, list[Features]]], seed: int, bound: int
) -> None:
    path = tmp_path_factory.mktemp("table") / "table"
    table, model = ResemblanceTable(path, bound, TAG), Model()
    for number, (step, features) in enumerate(steps):
        if step == "add":
            filling = [
                tuple((seed + number * 1000 + n) * 2654435761 % 2**32 >> s for s in range(12)) for n in range(90)
            ]
            table.add(packed(features + filling), model.add(features + filling))
        elif step == "ask":
            for row, (prefix, equal) in zip(features, answers(table, features, 1), strict=True):
                assert_holds(model, bound, row, prefix, equal)
        else:
            table.flush()
            table.close()
            table = ResemblanceTable(path, bound, TAG)
        assert table.chunk_count == min(bound, len(model.rows))
    table.close()


def assert_holds(model: Model, bound: int, asked: Features, prefix: bytes, equal: int) -> None:
    if equal == 0:
        assert prefix == bytes(16)
        return
    number = int.from_bytes(prefix[:8], "big")
    assert prefix == prefix_of(number)
    assert len(model.rows) - bound <= number < len(model.rows)
    assert equal == equal_count(asked, model.rows[number])


@settings(max_examples=60)
@given(
    damage=st.lists(st.tuples(st.integers(0, 400_000), st.binary(min_size=1, max_size=200)), min_size=1, max_size=20)
)
def test_no_damage_to_a_file_does_more_than_change_answers(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, bytes]]
) -> None:
    path = tmp_path_factory.mktemp("table") / "table"
    table, features = ResemblanceTable(path, 4096, TAG), numbered_rows()
    table.add(packed(features), b"".join(prefix_of(number) for number in range(len(features))))
    table.flush()
    spoil(path, damage)
    damaged = ResemblanceTable(path, 4096, TAG)
    for prefix, equal in answers(damaged, features, 1):
        assert equal <= FEATURES
        assert equal or prefix == bytes(16)
    damaged.add(packed(features), bytes(16 * len(features)))
    damaged.flush()
    assert ResemblanceTable(path, 4096, TAG).chunk_count in (len(features), 2 * len(features))


def numbered_rows() -> list[Features]:
    return [tuple(number * 48271 + place for place in range(FEATURES)) for number in range(1, 300)]


def spoil(path: Path, damage: list[tuple[int, bytes]]) -> None:
    data = bytearray(path.read_bytes())
    for at, replacement in damage:
        at %= len(data)
        data[at : at + len(replacement)] = replacement[: len(data) - at]
    path.write_bytes(data)
