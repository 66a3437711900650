"""The CUDA kernels, run on the CPU from their very sources, give what the CPU kernels give, to the byte."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import pytest
from shim import checks, samples
from shim.building import (
    COMPILER,
    DEFAULT,
    KERNELS,
    LIBRARY,
    SANITIZERS,
    SHIM,
    SMALL,
    Geometry,
    build_all,
    build_object,
    link,
)
from shim.device import ShimDevice
from shim.mutants import barrier_places
from shim.pipeline import NumbersJob, cut, find_candidates, hash_chunks, run_numbers

TESTS = SHIM.parent
GEOMETRIES = {"default": DEFAULT, "small": SMALL}
with_seed = pytest.mark.parametrize("seed", [0, 7])
with_geometry = pytest.mark.parametrize("geometry", list(GEOMETRIES))
with_kind = pytest.mark.parametrize("kind", ["noise", "sources", "run", "period", "flood", "mixed"])
NONE, XOR, FLOATS, INTEGERS = range(4)
TO_BF16, TO_F16 = 1, 2


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shim")
    for name, geometry in GEOMETRIES.items():
        build_all(folder / name, geometry)
    return folder


@pytest.fixture
def device(libraries: Path, geometry: str, seed: int) -> ShimDevice:
    return ShimDevice(libraries / geometry, GEOMETRIES[geometry], seed)


@pytest.fixture
def small(libraries: Path) -> ShimDevice:
    return ShimDevice(libraries / "small", SMALL, 5)


@with_seed
@with_geometry
@with_kind
@pytest.mark.parametrize("rule", list(samples.RULES))
def test_candidates_are_those_of_the_cpu(device: ShimDevice, kind: str, rule: str) -> None:
    size = 2 * device.geometry.tile + 12_345
    checks.check_candidates(device, samples.RULES[rule], samples.kinds(size)[kind])


@with_geometry
@pytest.mark.parametrize("seed", [3])
def test_candidates_of_batches_around_every_border(device: ShimDevice) -> None:
    tile = device.geometry.tile
    for size in (1, 3, 4, 62, 63, 64, 65, 127, 128, 511, 512, 513, tile - 1, tile, tile + 1, tile + 63, 2 * tile):
        checks.check_candidates(device, samples.TINY, samples.mixed(size))


def test_batches_may_begin_at_any_address(small: ShimDevice) -> None:
    data = samples.mixed(9001)
    for shift in range(1, 16):
        checks.check_candidates(small, samples.TINY, data, shift=shift)
        checks.check_cuts(small, samples.TINY, data, [4000, 9001], shift=shift)
        checks.check_ids(small, data, [1, 1030, 5001, 9001], shift=shift)
        checks.check_features(small, samples.TINY, data, [1, 1030, 5001, 9001], shift=shift)


@with_kind
def test_flooded_tiles_are_listed_as_long_as_there_is_room(small: ShimDevice, kind: str) -> None:
    data = samples.kinds(40_001)[kind]
    for capacity in (None, 100, 1000, 2000, 4000, len(data)):
        checks.check_scarce_room(small, samples.TINY, data, capacity)


@with_seed
@with_geometry
@with_kind
@pytest.mark.parametrize("rule", list(samples.RULES))
def test_one_file_is_cut_as_on_the_cpu(device: ShimDevice, kind: str, rule: str) -> None:
    size = device.geometry.tile + 23_456
    data = samples.kinds(size)[kind]
    for capacity in (None, size // 9, size):
        checks.check_cuts(device, samples.RULES[rule], data, [size], list_capacity=capacity)


@with_seed
@with_geometry
@with_kind
@pytest.mark.parametrize("rule", list(samples.RULES))
def test_many_uneven_files_are_cut_as_if_each_were_alone(device: ShimDevice, kind: str, rule: str) -> None:
    size = 90_001
    data = samples.kinds(size)[kind]
    for capacity in (None, size // 9):
        checks.check_cuts(device, samples.RULES[rule], data, samples.uneven_ends(size), list_capacity=capacity)


def test_more_files_than_a_block_has_threads(small: ShimDevice) -> None:
    data = samples.sources(5000)
    checks.check_cuts(small, samples.TINY, data, [0, 0, *range(1, 5001, 7), 5000, 5000])


@with_geometry
@with_kind
@pytest.mark.parametrize("seed", [2])
def test_a_file_that_goes_on_after_the_batch_keeps_its_tail(device: ShimDevice, kind: str) -> None:
    data = samples.kinds(30_000)[kind]
    for size in (1, 127, 128, 129, 2047, 2048, 2049, 4096, 30_000):
        checks.check_cuts(device, samples.TINY, data[:size], [size], last_is_open=True)
        checks.check_cuts(device, samples.TINY, data[:size], [size // 3, size // 3, size], last_is_open=True)


@with_kind
def test_a_file_in_many_batches_is_cut_as_in_one(small: ShimDevice, kind: str) -> None:
    data = samples.kinds(30_011)[kind]
    ends: list[int] = []
    start = 0
    for arrived in [*range(2500, len(data), 2500), len(data)]:
        is_last = arrived == len(data)
        found = find_candidates(small, samples.TINY, data[start:arrived])
        cuts = cut(small, samples.TINY, found, [arrived - start], last_is_open=not is_last)
        ends += [start + end for end in cuts.ends]
        start = ends[-1] if ends else 0
    chunker = samples.TINY.chunker()
    assert ends == memoryview(chunker.cut_stream(data, True)).cast("Q").tolist()


@with_seed
@with_geometry
def test_ids_are_keyed_blake3(device: ShimDevice) -> None:
    ends = list(accumulate([*checks.CHUNK_SIZES, 140_000, 31 * 1024, 32 * 1024, 33 * 1024, 1]))
    checks.check_ids(device, samples.random_bytes("ids", ends[-1]), ends)


def test_room_for_more_chunks_and_leaves_changes_no_id(small: ShimDevice) -> None:
    data = samples.sources(9999)
    for more in (1, 63, 64, 65):
        checks.check_ids(small, data, [0, 1000, 9999], chunks_too_many=more, leaves_too_many=more)


def test_the_key_decides_about_ids(small: ShimDevice) -> None:
    assert hash_chunks(small, b"x", [1], bytes(32)) != hash_chunks(small, b"x", [1], bytes(31) + b"\1")


@with_seed
@with_geometry
@with_kind
def test_features_are_those_of_the_cpu(device: ShimDevice, kind: str) -> None:
    data = samples.kinds(60_000)[kind]
    ends = [0, 1, 62, 125, 189, 254, 300, 1300, 5000, 5000, 21_700, 38_200, 60_000]
    checks.check_features(device, samples.TINY, data, ends)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("transform", [NONE, XOR, FLOATS, INTEGERS])
def test_planes_of_numbers_are_those_of_the_cpu(small: ShimDevice, width: int, transform: int) -> None:
    noise = samples.random_bytes(f"numbers {width}", 4200 * width)
    edges = b"".join(word.to_bytes(width, "little") for word in _edges(width)) * 40
    jobs = []
    for count in (0, 1, 2, 3, 4, 5, 63, 64, 127, 256, 257, 1999, 2048):
        base = None if transform == NONE else (edges[::-1] + noise)[: count * width]
        jobs.append(NumbersJob((edges + noise[::-1])[: count * width], transform, base))
    for shift in (0, 1, 2, 3, 4, 8, 15):
        checks.check_numbers(small, width, jobs, shift=shift)


def _edges(width: int) -> list[int]:
    top = 1 << (8 * width - 1)
    return [0, 1, top, top - 1, top + 1, 2 * top - 1, top - (top >> 6), 2 * top - (top >> 6)]


@pytest.mark.parametrize("cast", [TO_BF16, TO_F16])
@pytest.mark.parametrize("transform", [XOR, FLOATS, INTEGERS])
def test_bases_are_cast_as_on_the_cpu(small: ShimDevice, transform: int, cast: int) -> None:
    tails = [0, 1, 0xFFF, 0x1000, 0x1001, 0x3000, 0x7FFF, 0x8000, 0x8001, 0x18000, 0x7FFFFF, 0x400000]
    words = [exponent << 23 | tail for exponent in range(512) for tail in tails]
    base = b"".join(word.to_bytes(4, "little") for word in words)
    job = NumbersJob(samples.random_bytes("halves", 2 * len(words)), transform, base, cast)
    for shift in (0, 2, 7):
        checks.check_numbers(small, 2, [job], shift=shift, blocks=7)


def test_an_unknown_transform_writes_nothing(small: ShimDevice) -> None:
    assert run_numbers(small, "split", 4, [NumbersJob(b"abcdefgh", 4, bytes(8))]) == [b"\xcd" * 8]


def run_mutants(
    folder: Path, geometry: Geometry, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    values = (geometry.threads, geometry.place_threads, geometry.strip, geometry.slots)
    command = [sys.executable, "-m", "shim.mutants", str(folder), *map(str, values), *options]
    return subprocess.run(
        command, cwd=TESTS, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_no_barrier_can_be_left_out_unnoticed(libraries: Path) -> None:
    assert len(barrier_places()) >= 10
    done = run_mutants(libraries / "small", SMALL)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


# A bound or a constant that is wrong by one, in every kernel.
MUTATIONS = [
    ("candidates", "offset >= window_size - 1", "offset >= window_size"),
    ("candidates", "count > slots_per_tile", "count > slots_per_tile + 1"),
    ("candidates", "flooded_through <= room_for_flooded", "flooded_through <= 2 * room_for_flooded"),
    ("candidates", "hits[k].offset < hits[i].offset", "hits[k].offset <= hits[i].offset"),
    ("select", "static_cast<u32>(batch.limits.min_size) - 1", "static_cast<u32>(batch.limits.min_size)"),
    ("select", "end - start >= max_size", "end - start > max_size"),
    ("select", "batch.unlisted[middle] < start / tile_size", "batch.unlisted[middle] <= start / tile_size"),
    ("select", "batch.list[middle].offset < offset", "batch.list[middle].offset <= offset"),
    ("blake3", "leaf_first[middle] <= index", "leaf_first[middle] < index"),
    ("blake3", "count == 2", "count <= 3"),
    ("blake3", "if (left < 4)", "if (left < 3)"),
    ("features", "start + (window_size - 1)", "start + window_size"),
    ("features", "offset < to", "offset <= to"),
    ("numbers", "first < job.count;", "first + 1 < job.count;"),
    ("numbers", "(address_of(planes) | job.count)", "address_of(planes)"),
]


@pytest.mark.parametrize(("module", "right", "wrong"), MUTATIONS)
def test_no_bound_can_be_wrong_unnoticed(libraries: Path, tmp_path: Path, module: str, right: str, wrong: str) -> None:
    for path in (KERNELS / "cuda").glob("*.cu*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    source = tmp_path / f"{module}.cu"
    text = source.read_text(encoding="utf-8")
    assert text.count(right) == 1
    source.write_text(text.replace(right, wrong), encoding="utf-8")
    for path in (libraries / "small").iterdir():
        (tmp_path / path.name).symlink_to(path)
    for name in (LIBRARY, f"{module}.o"):
        (tmp_path / name).unlink()
    build_object(module, tmp_path, SMALL, sources=tmp_path)
    link(tmp_path)
    assert run_mutants(tmp_path, SMALL, "--once").returncode != 0


def test_no_kernel_reads_or_writes_where_it_must_not(tmp_path: Path) -> None:
    build_all(tmp_path, SMALL, extra=SANITIZERS)
    runtimes = [
        subprocess.run(
            [COMPILER, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so", "libstdc++.so")
    ]
    done = run_mutants(
        *(tmp_path, SMALL, "--once"),
        LD_PRELOAD=" ".join(runtimes),
        ASAN_OPTIONS="detect_leaks=0:detect_stack_use_after_return=0:abort_on_error=0",
        UBSAN_OPTIONS="print_stacktrace=1",
        OHDIFF_SHIM_SANITIZED="1",
        PYTHONMALLOC="malloc",
    )
    assert done.returncode == 0, done.stderr[-5000:]
