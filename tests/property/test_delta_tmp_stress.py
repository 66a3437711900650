"""Random edits of several files over several snapshots: each snapshot reads back, by the product and by the reader."""

from __future__ import annotations

import contextlib
import io
import random
import shutil
import tempfile
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from format_decoders import reader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.chains import assert_chains, codecs_of
from support.small_tensors import bf16, lower_limits, safetensors, stepped, weights
from support.sources import random_bytes, text_bytes, write
from support.vault import Vault, chunker

from ohdiff.operations.observer import Silent
from ohdiff.operations.restore import RestoreOptions, restore
from ohdiff.repository import chunk_writer, packs
from ohdiff.repository.chunk_reader import ChunkReader
from ohdiff.repository.snapshots import StoredSnapshot
from ohdiff.storage import LocalStorage, MemoryStorage
from ohdiff_format.blocks import CODEC_DELTA, CODEC_NUMBERS

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
# Files of many chunks, blocks of several, and packs of few blocks.
RULE = chunker(4096, 1024, 16_384)
Files = dict[str, bytes]


@pytest.fixture(scope="module", autouse=True)
def _low_limits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        lower_limits(patch)
        patch.setattr(chunk_writer, "_DELTA_BLOCK_SIZE_BYTES", 24 << 10)
        patch.setattr(packs, "PACK_SIZE_BYTES", 100 << 10)
        yield


def inserted(data: bytes, dice: random.Random) -> bytes:
    at = dice.randint(0, len(data))
    return data[:at] + dice.randbytes(dice.choice([1, 100, 9_000])) + data[at:]


def deleted(data: bytes, dice: random.Random) -> bytes:
    at = dice.randint(0, len(data))
    return data[:at] + data[at + dice.choice([1, 100, 9_000]) :]


def overwritten(data: bytes, dice: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.randint(1, 20)):
        if changed:
            changed[dice.randrange(len(changed))] = dice.randrange(256)
    return bytes(changed)


def moved(data: bytes, dice: random.Random) -> bytes:
    one, other = sorted(dice.randint(0, len(data)) for _ in range(2))
    return data[other:] + data[one:other] + data[:one]


def doubled(data: bytes, dice: random.Random) -> bytes:
    return (data + overwritten(data, dice))[:300_000]


def cut_off(data: bytes, dice: random.Random) -> bytes:
    return data[: dice.randint(0, len(data))]


EDITS: list[Callable[[bytes, random.Random], bytes]] = [inserted, deleted, overwritten, moved, doubled, cut_off]


def edit_tensors(files: Files, dice: random.Random) -> None:
    """One more step of a run, in place or in a folder beside, and now and then its rounded copy."""
    step = sum(name.startswith("step") for name in files)
    last = max((name for name in files if name.endswith("model.safetensors")), default=None)
    values = weights(3_000, 5)
    if last is not None:
        values = array("f", files[last][-12_000:])
        values = stepped(values, dice.randrange(1000))
    name = f"step{step}/model.safetensors" if last is None or dice.random() < 0.6 else last
    files[name] = safetensors({"w": ("F32", values.tobytes())})
    if dice.random() < 0.5:
        files[name.replace("model", "copy")] = safetensors({"w": ("BF16", bf16(values))})


def edit_files(files: Files, history: list[Files], dice: random.Random) -> None:
    """One edit: of a file's bytes, of a run's tensors, or of which files there are."""
    names = sorted(name for name in files if not name.endswith(".safetensors"))
    what = dice.choice(["bytes", "bytes", "bytes", "tensors", "copy", "rename", "remove", "return"])
    if what == "tensors":
        edit_tensors(files, dice)
    elif what == "return" and history:
        files.update(dice.choice(history))
    elif not names or what == "copy":
        source = files[dice.choice(names)] if names else random_bytes(60_000, dice.randrange(9))
        files[f"file {len(files)}"] = overwritten(source, dice)
    elif what == "bytes":
        name = dice.choice(names)
        files[name] = dice.choice(EDITS)(files[name], dice)
    elif what == "rename":
        files[f"name {dice.randrange(9)}"] = files.pop(dice.choice(names))
    else:
        files.pop(dice.choice(names))


@contextmanager
def work_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir=MEMORY))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def lay_out(source: Path, files: Files) -> None:
    """Make a folder hold these files; those that are as they were are not touched."""
    for path in [path for path in source.rglob("*") if path.is_file()]:
        if str(path.relative_to(source)) not in files:
            path.unlink()
    for name, data in files.items():
        path = source / name
        if not path.exists() or path.read_bytes() != data:
            write(path, data)


def files_in(folder: Path) -> Files:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def restored_by_product(vault: Vault, stored: StoredSnapshot, source: Path, target: Path) -> Files:
    with vault.opened() as (repository, index):
        options = RestoreOptions(target=bytes(target), source=bytes(source))
        result = restore(repository, index, ChunkReader(repository, index), stored, options, Silent())
    assert result.errors == []
    return files_in(target)


def run_reader(*arguments: str | Path) -> None:
    output = io.StringIO()
    with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output), pytest.raises(SystemExit) as ended:
        reader.main([str(argument) for argument in arguments])
    assert not ended.value.code, output.getvalue()


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    dice=st.randoms(use_true_random=False),
    script=st.lists(st.integers(1, 6), min_size=2, max_size=5),
    is_scanned=st.booleans(),
)
def test_every_snapshot_of_any_edit_script_restores_by_product_and_reader(
    dice: random.Random, script: list[int], is_scanned: bool
) -> None:
    with work_folder() as folder:
        source = folder / "source"
        source.mkdir()
        vault = Vault(LocalStorage.create(folder / "repository"), folder / "cache").create(RULE)
        assert vault.key is not None
        write(folder / "key", vault.key.secret)
        files = {"random": random_bytes(150_000, 1), "text": text_bytes(80_000, 2), "small": random_bytes(900, 3)}
        edit_tensors(files, dice)
        history: list[Files] = []
        for count in [0, *script]:
            for _ in range(count):
                edit_files(files, history, dice)
            lay_out(source, files)
            vault.store(source)
            history.append(dict(files))
        assert_chains(vault)
        vault.assert_sound()
        options = [folder / "repository", "--key-file", folder / "key", *(["--scan-packs"] if is_scanned else [])]
        for number, (stored, expected) in enumerate(zip(vault.snapshots(), history, strict=True)):
            assert restored_by_product(vault, stored, source, folder / f"product {number}") == expected
            target = folder / f"reader {number}"
            run_reader(*options, "restore", stored.snapshot_id.hex(), target)
            assert files_in(target / source.relative_to("/")) == expected


def test_scripts_store_deltas_and_numbers(tmp_path: Path) -> None:
    """So that the property above is about what it says."""
    vault, source = Vault(MemoryStorage("script")).create(RULE), tmp_path / "source"
    dice = random.Random(5)
    files = {"random": random_bytes(150_000, 1), "text": text_bytes(80_000, 2)}
    edit_tensors(files, dice)
    for _ in range(4):
        lay_out(source, files)
        vault.store(source)
        files["random"] = overwritten(files["random"], dice)
        edit_tensors(files, dice)
    assert {CODEC_DELTA, CODEC_NUMBERS} <= codecs_of(vault)
    assert_chains(vault)


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(
    edits=st.lists(
        st.tuples(st.sampled_from(["insert", "delete", "overwrite"]), st.integers(0, 399_999), st.integers(1, 500)),
        min_size=1,
        max_size=4,
    ),
    seed=st.integers(0, 3),
)
def test_an_edit_of_a_file_that_does_not_compress_adds_far_less_than_the_file(
    edits: list[tuple[str, int, int]], seed: int
) -> None:
    with work_folder() as folder:
        data = random_bytes(400_000, seed)
        path = write(folder / "source" / "file", data)
        vault = Vault(MemoryStorage("small edits")).create(chunker())
        vault.store(path.parent)
        for what, at, size in edits:
            put_in = b"" if what == "delete" else random_bytes(size, at)
            data = data[:at] + put_in + data[at + (0 if what == "insert" else size) :]
        write(path, data)
        stored = vault.store(path.parent)
        assert vault.data(stored, path) == data
        # What was put in, and some hundred bytes for each block and object; a chunk alone has 64 KiB.
        assert stored.snapshot.statistics.added_stored_size < sum(size for _, _, size in edits) + 6_000
