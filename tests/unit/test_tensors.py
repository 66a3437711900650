"""Snapshots of arrays in memory: the same file, pieces and bases as one that was saved, and only new bytes copied."""

from __future__ import annotations

import ctypes
import json
import struct
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import pytest
from support import fake_cupy
from support.exporting_arrays import CUDA, DlpackArray, InterfaceArray
from support.fake_cupy import Machine
from support.small_tensors import PIECE_ELEMENTS, bf16, lower_limits, stepped, weights
from support.vault import Vault

import ohdiff
from ohdiff.chunking.cpu import CpuEngine
from ohdiff.chunking.cuda import self_check
from ohdiff.errors import DeviceError, NoSnapshotError, SourceError, UsageError, WrongKeyError
from ohdiff.operations.observer import Progress, Silent
from ohdiff.operations.tensor_arrays import tensor_memories
from ohdiff.operations.tensors import TensorsResult, snapshot_tensors
from ohdiff.operations.tensors_restore import RestoredTensor, restore_tensors

PATH = "/run/model.safetensors"


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    lower_limits(monkeypatch)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A stand-in for a device."""
    return fake_cupy.install(monkeypatch)


def take(vault: Vault, arrays: dict[str, Any], **options: Any) -> TensorsResult:
    """A snapshot at a later time than the one before."""
    vault.time_ns += 1_000
    return snapshot_tensors(vault.open(), arrays, PATH, time_ns=vault.time_ns, **options)


def plain(vault: Vault, **options: Any) -> dict[str, RestoredTensor]:
    """The latest snapshot's tensors, without any library."""
    return restore_tensors(vault.open(), is_plain=True, **options)


def model(seed: int = 1, count: int = 3 * PIECE_ELEMENTS + 500) -> dict[str, Any]:
    """Some tensors: large and small, and of several kinds."""
    values = weights(count, seed)
    return {
        "layer.weight": values,
        "layer.bias": array("f", [1.0, 2.0]),
        "copy": InterfaceArray(bf16(values), (count,), "<V2", "bfloat16"),
        "steps": array("q", range(200)),
        "mask": memoryview(bytes(3000)).cast("?"),
    }


def bytes_of(tensor: Any) -> bytes:
    (memory,) = tensor_memories({"x": tensor})
    return bytes(memory.memory)  # type: ignore[arg-type]


def test_what_is_restored_is_what_was_snapshotted(vault: Vault) -> None:
    given = model()
    result = take(vault, given, metadata={"format": "pt"}, tags=["step"], host="h", user="u")
    assert result.stored is not None
    assert (result.snapshot.paths, result.snapshot.tags, result.snapshot.host) == ([PATH.encode()], ["step"], "h")
    found = plain(vault)
    assert set(found) == set(given)
    for name, tensor in found.items():
        assert tensor.tobytes() == bytes_of(given[name]), name
    assert (found["copy"].dtype, found["copy"].shape) == ("bfloat16", (3 * PIECE_ELEMENTS + 500,))
    assert found["steps"].dtype == "int64"
    assert found["mask"].dtype == "bool"
    vault.assert_sound()


def test_the_file_is_one_that_any_loader_reads(vault: Vault) -> None:
    given = model()
    result = take(vault, given, metadata={"format": "pt"})
    data = vault.data(result.stored, PATH.encode())  # type: ignore[arg-type]
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    assert header.pop("__metadata__") == {"format": "pt"}
    assert header["layer.bias"] == {"dtype": "F32", "shape": [2], "data_offsets": header["layer.bias"]["data_offsets"]}
    position = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        start, end = entry["data_offsets"]
        assert start == position, "the tensors lie without holes"
        assert data[8 + length + start : 8 + length + end] == bytes_of(given[name])
        position = end
    assert position == len(data) - 8 - length


def test_the_file_is_byte_for_byte_what_safetensors_saves(vault: Vault) -> None:
    numpy = pytest.importorskip("numpy")
    saving = pytest.importorskip("safetensors.numpy")
    given = {
        "b": numpy.arange(3000, dtype="f4").reshape(30, 100),
        "a": numpy.arange(7, dtype="f4"),
        "wide": numpy.arange(11, dtype="f8"),
        "i": numpy.array(5, dtype="i4"),
        "h": numpy.arange(5, dtype="f2"),
        "empty": numpy.zeros((0, 4), dtype="f4"),
    }
    kinds = ("?", "u1", "i1", "i2", "u2", "f2", "i4", "u4", "f4", "c8", "f8", "i8", "u8")
    # Names against the order of kinds: neither name nor width alone decides.
    given |= {f"z{number:02} {kind}": numpy.arange(3).astype(kind) for number, kind in enumerate(kinds)}
    given |= {f"y{99 - number} {kind}": numpy.arange(2).astype(kind) for number, kind in enumerate(kinds)}
    result = take(vault, given)
    assert vault.data(result.stored, PATH.encode()) == saving.save(given)  # type: ignore[arg-type]
    loaded = saving.load(vault.data(result.stored, PATH.encode()))  # type: ignore[arg-type]
    for name, tensor in given.items():
        assert loaded[name].tobytes() == tensor.tobytes()
        assert loaded[name].shape == tensor.shape


def test_numpy_arrays_come_back_as_numpy_arrays(vault: Vault) -> None:
    numpy = pytest.importorskip("numpy")
    given = {
        "rows": numpy.arange(5000, dtype="f4").reshape(50, 100),
        "columns": numpy.arange(5000, dtype="f4").reshape(50, 100).T,
        "every second": numpy.arange(4000, dtype="i2")[::2],
        "scalar": numpy.float64(2.5),
        "empty": numpy.zeros((0, 3), dtype="u1"),
        "flags": numpy.array([True, False]),
        "complex": numpy.array([1 + 2j], dtype="c8"),
    }
    take(vault, given)
    found = restore_tensors(vault.open())
    for name, tensor in given.items():
        assert isinstance(found[name], numpy.ndarray)
        assert found[name].dtype == tensor.dtype
        assert (found[name] == tensor).all()
        assert found[name].shape == tensor.shape
    found["rows"][0, 0] = 7
    assert set(restore_tensors(vault.open(), names=["scalar"])) == {"scalar"}


def test_pieces_are_those_of_the_saved_file(vault: Vault, source: Path) -> None:
    given = model()
    first = take(vault, given)
    saved = source / "model.safetensors"
    saved.write_bytes(vault.data(first.stored, PATH.encode()))  # type: ignore[arg-type]
    vault.store(saved)
    contents = vault.entry(vault.snapshots()[-1], saved).content
    assert contents == vault.entry(first.stored, PATH.encode()).content  # type: ignore[arg-type]
    vault.assert_sound()


def test_a_step_of_training_is_stored_as_its_difference_from_the_parent(vault: Vault) -> None:
    values = weights(8 * PIECE_ELEMENTS, 5)
    first = take(vault, {"w": values}).snapshot.statistics
    second = take(vault, {"w": stepped(values, 6)}).snapshot
    assert second.parent == vault.snapshots()[0].snapshot_id
    assert second.statistics.added_size > 8 * PIECE_ELEMENTS * 4
    assert second.statistics.added_stored_size < 0.8 * first.added_stored_size
    assert plain(vault)["w"].tobytes() == stepped(values, 6).tobytes()
    vault.assert_sound()


def test_unchanged_tensors_add_nothing_but_a_snapshot(vault: Vault) -> None:
    given = model()
    take(vault, given)
    again = take(vault, given)
    assert again.stored is not None
    assert again.snapshot.statistics.added_size < 1000
    assert take(vault, given, skip_if_unchanged=True).stored is None
    assert take(vault, model(2), skip_if_unchanged=True).stored is not None


def test_a_dry_run_stores_nothing(vault: Vault) -> None:
    result = take(vault, model(), is_dry_run=True)
    assert result.stored is None
    assert result.snapshot.statistics.added_chunks > 5
    assert vault.snapshots() == []


def test_without_compression_and_without_a_parent_it_is_the_same_file(vault: Vault) -> None:
    given = model()
    take(vault, given)
    other = take(vault, given, level=None, parent=None, threads=1)
    assert other.snapshot.parent == b""
    assert plain(vault)["layer.weight"].tobytes() == given["layer.weight"].tobytes()


def test_a_parent_may_be_named(vault: Vault) -> None:
    first = take(vault, model())
    take(vault, model(2))
    assert first.stored is not None
    assert take(vault, model(), parent=first.stored.snapshot_id.hex()).snapshot.parent == first.stored.snapshot_id
    assert take(vault, model(), parent=first.stored).snapshot.parent == first.stored.snapshot_id


def test_large_tensors_without_numbers_are_cut_by_content(vault: Vault) -> None:
    mask = bytes(byte & 1 for byte in random_bytes(900_000))
    given = {"mask": memoryview(mask).cast("?"), "w": weights(2000, 3)}
    take(vault, given)
    changed = memoryview(mask[:500_000] + bytes(1000) + mask[500_000:]).cast("?")
    second = take(vault, {**given, "mask": changed})
    assert second.snapshot.statistics.added_size < 500_000
    assert plain(vault)["mask"].tobytes() == changed.tobytes()


def random_bytes(size: int) -> bytes:
    from blake3 import blake3

    return blake3(b"tensors").digest(length=size)


def test_progress_is_told(vault: Vault) -> None:
    seen: list[tuple[int, int]] = []

    class Listening(Silent):
        def progress(self, progress: Progress) -> None:
            seen.append((progress.bytes_done, progress.total_bytes))

    result = take(vault, model(), observer=Listening())
    size = result.snapshot.statistics.size
    assert seen[-1] == (size, size)
    assert seen == sorted(seen)


def test_an_array_that_changes_meanwhile_is_no_snapshot(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    values = weights(2 * PIECE_ELEMENTS, 9)
    hash_chunks = CpuEngine.hash_chunks

    def hash_and_change(engine: CpuEngine, data: Any, cuts: Any) -> bytes:
        ids = hash_chunks(engine, data, cuts)
        values[5] += 1.0
        return ids

    monkeypatch.setattr(CpuEngine, "hash_chunks", hash_and_change)
    with pytest.raises(SourceError, match="changed while it was read"):
        take(vault, {"w": values})
    monkeypatch.undo()
    assert vault.snapshots() == []
    vault.assert_sound()


def resident(machine: Machine, data: bytes, typestr: str = "<f4") -> Any:
    return fake_cupy.on_device(machine, data, (len(data) // int(typestr[2:]),), typestr)


def test_what_lies_on_a_device_is_hashed_there_and_only_new_pieces_come_down(vault: Vault, machine: Machine) -> None:
    values = weights(64 * PIECE_ELEMENTS, 11)
    first = take(vault, {"w": resident(machine, values.tobytes())})
    assert "engine cuda: the data lies there" in first.engine
    # The tensor, and its header.
    assert first.copied_size == len(values) * 4
    assert plain(vault)["w"].tobytes() == values.tobytes()
    before = machine.copied_down
    second = take(vault, {"w": resident(machine, values.tobytes())})
    assert second.copied_size == 0
    ids_and_self_check = 600_000
    assert machine.copied_down - before < ids_and_self_check
    changed = array("f", values)
    changed[40 * PIECE_ELEMENTS + 3] += 1
    third = take(vault, {"w": resident(machine, changed.tobytes())})
    assert third.copied_size == PIECE_ELEMENTS * 4
    assert plain(vault)["w"].tobytes() == changed.tobytes()
    vault.assert_sound()


def test_arrays_here_and_on_a_device_make_the_same_file(vault: Vault, machine: Machine) -> None:
    values = weights(5000, 12)
    small = array("f", [1.0, 2.0, 3.0])
    here = take(vault, {"w": values, "b": small})
    there = take(vault, {"w": resident(machine, values.tobytes()), "b": resident(machine, small.tobytes())})
    root = here.snapshot.root_ids
    entry = vault.entry(here.stored, PATH.encode()).content  # type: ignore[arg-type]
    assert root != b""
    assert vault.entry(there.stored, PATH.encode()).content == entry  # type: ignore[arg-type]
    # Small tensors lie in one range with the header: they are read.
    assert there.copied_size == 12


def test_a_device_that_hashes_wrongly_is_found_out_before_anything_is_committed(
    vault: Vault, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_check, "first_disagreement", lambda *_: None)
    machine.wrong_kernel = "ohdiff_hash_trees"
    with pytest.raises(SourceError, match="hashed it wrongly"):
        take(vault, {"w": resident(machine, weights(5000, 13).tobytes())})
    assert vault.snapshots() == []


def test_a_device_that_fails_the_check_is_not_used_but_read(vault: Vault, machine: Machine) -> None:
    machine.wrong_kernel = "ohdiff_hash_trees"
    values = weights(5000, 13)
    result = take(vault, {"w": resident(machine, values.tobytes())})
    assert "no CUDA device can be used: Fake Device is not used: the chunk ids of noise" in result.engine
    assert plain(vault)["w"].tobytes() == values.tobytes()


def test_with_the_cpu_demanded_device_arrays_are_copied_down(vault: Vault, machine: Machine) -> None:
    values = weights(5000, 14)
    result = take(vault, {"w": resident(machine, values.tobytes())}, engine="cpu")
    assert "engine cpu: as demanded" in result.engine
    assert machine.launches == []
    # Once to be hashed, and once more to be stored.
    assert result.copied_size == 2 * len(values) * 4
    assert plain(vault)["w"].tobytes() == values.tobytes()


def test_device_arrays_without_cupy_are_an_error_that_says_what_is_missing(
    vault: Vault, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = resident(machine, bytes(8192))
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceError, match="CuPy is not installed"):
        take(vault, {"w": tensor})


def test_tensors_are_restored_onto_a_device(vault: Vault, machine: Machine) -> None:
    given = {"w": weights(5000, 15), "half": InterfaceArray(bf16(weights(600, 1)), (600,), "<V2", "bfloat16")}
    take(vault, given)
    found = restore_tensors(vault.open(), device="cuda")
    assert isinstance(found["w"], fake_cupy.Array)
    assert (found["w"].tobytes(), found["w"].shape) == (given["w"].tobytes(), (5000,))
    # What the library has no elements for still lies there, described by its interface.
    half = found["half"]
    assert half.is_on_device
    assert half.__cuda_array_interface__["typestr"] == "<V2"
    assert half.tobytes() == bytes_of(given["half"])
    assert not hasattr(half, "__array_interface__")
    again = take(vault, {"w": found["w"], "half": half})
    assert again.snapshot.statistics.added_size < 1000
    with pytest.raises(DeviceError, match="no CUDA device 4"):
        restore_tensors(vault.open(), device="cuda:4")
    machine.allocation_size_max = 10_000
    with pytest.raises(DeviceError, match="cannot be put on the device"):
        restore_tensors(vault.open(), device="cuda")


def test_plain_tensors_can_be_snapshotted_again(vault: Vault) -> None:
    take(vault, model())
    found = plain(vault)
    assert "RestoredTensor('copy', bfloat16, [3572])" in repr(found["copy"])
    assert found["copy"].nbytes == 2 * 3572
    assert not hasattr(found["copy"], "__cuda_array_interface__")
    assert take(vault, found).snapshot.statistics.added_size < 1000


@pytest.mark.parametrize(
    ("code", "bits", "name"),
    [
        (2, 32, "float32"),
        (4, 16, "bfloat16"),
        (10, 8, "float8_e4m3fn"),
        (6, 8, "bool"),
        (1, 16, "uint16"),
        (5, 64, "complex64"),
    ],
)
def test_dlpack_is_read_with_every_kind_of_element(vault: Vault, code: int, bits: int, name: str) -> None:
    data = ctypes.create_string_buffer(random_bytes(4096), 4096)
    shape = (4, 4096 // 4 // (bits // 8))
    exported = DlpackArray(ctypes.addressof(data), shape, code, bits, owner=data)
    take(vault, {"x": exported})
    found = plain(vault)["x"]
    assert (found.dtype, found.shape, found.tobytes()) == (name, shape, data.raw)


def test_dlpack_on_a_device_is_read_there_without_a_stream(vault: Vault, machine: Machine) -> None:
    values = weights(4096, 21)
    on_device = resident(machine, values.tobytes())
    exported = DlpackArray(on_device.memory.ptr, (64, 64), 2, 32, device_kind=CUDA, owner=on_device)
    result = take(vault, {"x": exported})
    assert exported.stream == -1
    assert result.copied_size == 4 * 4096
    assert plain(vault)["x"].tobytes() == values.tobytes()


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (object(), "a object is no array"),
        ("text", "a str is no array"),
        (InterfaceArray(bytes(16), (1,), "<c16", "complex128"), "no elements of type complex128"),
        (InterfaceArray(bytes(16), (2,), ">f8", ">f8"), "no elements of type >f8"),
        (InterfaceArray(bytes(16), (2,), "<f8", "float32"), "its bytes are not those of float32"),
        (DlpackArray(0, (4,), 2, 32, device_kind=9), "no array that can be read"),
        (DlpackArray(1 << 12, (4, 4), 2, 32, strides=(1, 4)), "no array that can be read"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_name(vault: Vault, tensor: object, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as raised:
        take(vault, {"odd": tensor})
    assert "odd" in raised.value.message
    assert vault.snapshots() == []


def test_wrong_calls_say_what_is_wrong(vault: Vault) -> None:
    repository = vault.open()
    with pytest.raises(UsageError, match="no tensor to be"):
        snapshot_tensors(repository, {})
    with pytest.raises(UsageError, match="tagz"):
        snapshot_tensors(repository, model(), tagz=["x"])
    with pytest.raises(UsageError, match="not the path of a file"):
        snapshot_tensors(repository, model(), "/a/../b")
    with pytest.raises(UsageError, match="named __metadata__"):
        snapshot_tensors(repository, {"__metadata__": array("f", [1])})
    with pytest.raises(UsageError, match="unknown engine tpu"):
        snapshot_tensors(repository, model(), engine="tpu")
    with pytest.raises(NoSnapshotError):
        restore_tensors(repository)


def test_restoring_the_wrong_thing_says_so(vault: Vault, source: Path) -> None:
    take(vault, model())
    with pytest.raises(UsageError, match=r"no tensor 'nobody'"):
        plain(vault, names=["nobody"])
    with pytest.raises(NoSnapshotError):
        plain(vault, path="/elsewhere")
    with pytest.raises(UsageError, match="no file at this path"):
        plain(vault, path="/run")
    with pytest.raises(UsageError, match="unknown device"):
        plain(vault, device="tpu")
    (source / "text").write_text("no tensors")
    vault.store(source)
    with pytest.raises(UsageError, match="not a safetensors file"):
        plain(vault, path=str(source / "text"))


def test_a_saved_file_of_a_folder_is_restored_as_tensors(vault: Vault, source: Path) -> None:
    first = take(vault, model())
    (source / "m.safetensors").write_bytes(vault.data(first.stored, PATH.encode()))  # type: ignore[arg-type]
    vault.store(source)
    found = plain(vault, path=str(source / "m.safetensors"))
    assert found["steps"].tobytes() == array("q", range(200)).tobytes()


def test_a_repository_is_opened_by_its_place_and_secret(local_vault: Vault, tmp_path: Path) -> None:
    import base64

    assert local_vault.key is not None
    key_file = tmp_path / "key"
    key_file.write_bytes(b"# a key\n" + base64.b64encode(local_vault.key.secret) + b"\n")
    place = tmp_path / "repository"
    values = weights(1000, 1)
    result = ohdiff.snapshot_tensors(place, {"w": values}, key_file=key_file, cache_folder=tmp_path / "cache")
    assert isinstance(result, ohdiff.TensorsResult)
    found = ohdiff.restore_tensors(str(place), key_file=key_file, is_plain=True)["w"]
    assert found.tobytes() == values.tobytes()
    key_file.write_bytes(b"no key\n")
    with pytest.raises(UsageError, match="key file"):
        ohdiff.restore_tensors(place, key_file=key_file)
    with pytest.raises(UsageError, match="both"):
        ohdiff.restore_tensors(place, key_file=key_file, password="x")
    with pytest.raises(WrongKeyError):
        ohdiff.restore_tensors(place, password="x")


def test_importing_the_package_imports_nothing_of_this(tmp_path: Path) -> None:
    script = "import sys, ohdiff; print([n for n in sys.modules if n.startswith('ohdiff.')]); ohdiff.restore_tensors; "
    script += "print('ohdiff.operations.tensors_restore' in sys.modules, 'cupy' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "True False False"]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ohdiff.nothing  # type: ignore[attr-defined]
    assert "snapshot_tensors" in dir(ohdiff)
