"""Tensors that are encoded on the device that they lie on, which is none: what comes down, and what is read back."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from support import fake_cupy, fake_nvcomp
from support.chains import assert_chains, codecs_of
from support.fake_cupy import Machine, on_device
from support.fake_nvcomp import FakeNvcomp
from support.small_tensors import PIECE_ELEMENTS, bf16, lower_limits, stepped, weights
from support.vault import Vault

from ohdiff.chunking.cuda import planes as planes_module
from ohdiff.errors import DeviceError, SourceError
from ohdiff.operations.tensors import TensorsResult, snapshot_tensors
from ohdiff.operations.tensors_restore import restore_tensors
from ohdiff_format.blocks import CODEC_NUMBERS

PATH = "/run/model.safetensors"
COUNT = 3 * PIECE_ELEMENTS


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    lower_limits(monkeypatch)
    monkeypatch.setattr(planes_module, "_PLANE_BYTES_MAX", PIECE_ELEMENTS + 128)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A stand-in for a device."""
    return fake_cupy.install(monkeypatch)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> FakeNvcomp:
    """A stand-in for nvCOMP."""
    return fake_nvcomp.install(monkeypatch, machine)


def tensor(machine: Machine, data: bytes, typestr: str = "<f4") -> Any:
    return on_device(machine, data, (len(data) // int(typestr[2:]),), typestr)


def take(vault: Vault, arrays: dict[str, Any], **options: Any) -> TensorsResult:
    """A snapshot with compression on the device, at a later time than the one before."""
    vault.time_ns += 1_000
    options = {"compress_on": "device", **options}
    return snapshot_tensors(vault.open(), arrays, PATH, time_ns=vault.time_ns, **options)


def assert_restored(vault: Vault, data: dict[str, bytes]) -> None:
    vault.assert_sound()
    found = restore_tensors(vault.open(), is_plain=True)
    assert {name: each.tobytes() for name, each in found.items()} == data


def splits(machine: Machine) -> int:
    return sum(name.startswith("ohdiff_split_numbers") for name in machine.launches)


def test_new_pieces_are_encoded_where_they_lie_and_proved_here(
    vault: Vault, machine: Machine, library: FakeNvcomp
) -> None:
    data = weights(COUNT, 1).tobytes()
    result = take(vault, {"w": tensor(machine, data)})
    assert "compression on Fake Device, nvCOMP 6.0: as demanded" in result.compression
    assert splits(machine) == 3
    # Three planes of noise, and the frame of the fourth.
    assert 0.75 * len(data) < result.copied_size < 0.95 * len(data)
    assert CODEC_NUMBERS in codecs_of(vault)
    assert_restored(vault, {"w": data})
    again = take(vault, {"w": data_here(data)}, compress_on="cpu")
    assert again.snapshot.statistics.added_size < 2000
    assert again.compression == "compression on the CPU: as demanded"


def test_a_step_stands_on_the_step_before_and_a_copy_on_its_master(
    vault: Vault, machine: Machine, library: FakeNvcomp
) -> None:
    values = weights(COUNT, 2)
    first = take(vault, {"w": tensor(machine, values.tobytes())})
    values = stepped(values, 3)
    given = {"w": values.tobytes()}
    second = take(vault, {"w": tensor(machine, given["w"])})
    assert second.snapshot.statistics.added_stored_size < first.snapshot.statistics.added_stored_size
    assert 0 < second.copied_size < first.copied_size
    assert_chains(vault)
    assert_restored(vault, given)
    assert splits(machine) == 3 + 3 * 3


@pytest.mark.parametrize(
    ("typestr", "data"),
    [
        ("<f8", array("d", weights(COUNT, 4)).tobytes()),
        ("<f2", bf16(weights(COUNT, 5))),
        ("<i8", array("q", range(COUNT)).tobytes()),
        ("|i1", bytes(range(256)) * (COUNT // 256)),
        ("<f4", bytes(4 * COUNT)),
        # Not whole words of a plane, and a tail that is joined to the piece before: by the CPU, and by the device.
        ("<f4", weights(COUNT + 1, 6).tobytes()),
        ("<f4", weights(COUNT + 100, 7).tobytes()),
    ],
)
def test_every_kind_of_number_is_read_back(
    vault: Vault, machine: Machine, library: FakeNvcomp, typestr: str, data: bytes
) -> None:
    for step in range(2):
        changed = bytes([data[0] ^ step]) + data[1:]
        take(vault, {"w": tensor(machine, changed, typestr)})
        assert_restored(vault, {"w": changed})
        assert_chains(vault)
    assert splits(machine) > 0


@pytest.mark.parametrize(
    ("attributes", "note"),
    [
        ({"bad_batches": frozenset([1])}, "does not decode to its block"),
        ({"bad_batches": frozenset([3])}, "does not decode to its block"),
        ({"failing_batches": frozenset([2])}, "an illegal memory access"),
        ({"refusing_batches": frozenset([1, 2, 3])}, ""),
    ],
)
def test_whatever_goes_wrong_the_cpu_encodes_the_rest(
    vault: Vault, machine: Machine, monkeypatch: pytest.MonkeyPatch, attributes: dict[str, Any], note: str
) -> None:
    fake_nvcomp.install(monkeypatch, machine, **attributes)
    data = {name: weights(COUNT, seed).tobytes() for seed, name in enumerate("abc")}
    arrays = {name: tensor(machine, each) for name, each in data.items()}
    if "failing_batches" in attributes:
        # What lies on a device that is gone cannot be had at all.
        with pytest.raises(DeviceError):
            take(vault, arrays)
        assert vault.snapshots() == []
        return
    result = take(vault, arrays)
    assert note in result.compression
    assert_restored(vault, data)


def test_a_kernel_that_splits_wrongly_is_found_out_and_the_cpu_does_it(
    vault: Vault, machine: Machine, library: FakeNvcomp
) -> None:
    machine.wrong_kernel = "ohdiff_split_numbers_4"
    data = weights(COUNT, 8).tobytes()
    result = take(vault, {"w": tensor(machine, data)})
    assert "the CPU compressed the rest" in result.compression
    assert_restored(vault, {"w": data})


def test_a_tensor_that_changes_meanwhile_commits_nothing(
    vault: Vault, machine: Machine, library: FakeNvcomp, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tensor(machine, weights(COUNT, 9).tobytes())
    encode = planes_module.PlaneEncoder.encode

    def change_and_encode(self: Any, *arguments: Any) -> Any:
        machine.write(given.memory.ptr, b"\xff" * 4)
        return encode(self, *arguments)

    monkeypatch.setattr(planes_module.PlaneEncoder, "encode", change_and_encode)
    with pytest.raises(SourceError, match="changed while it was read"):
        take(vault, {"w": given})
    assert vault.snapshots() == []


def test_without_memory_for_planes_pieces_are_encoded_by_the_cpu(
    vault: Vault, machine: Machine, library: FakeNvcomp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planes_module, "_PLANE_BYTES_MAX", 64 << 20)
    data = weights(COUNT, 10).tobytes()
    result = take(vault, {"w": tensor(machine, data)})
    assert "pieces of tensors are encoded by the CPU" in result.compression
    assert splits(machine) == 0
    assert_restored(vault, {"w": data})


def test_what_is_not_on_a_device_is_encoded_here(vault: Vault, machine: Machine, library: FakeNvcomp) -> None:
    data = weights(COUNT, 11).tobytes()
    take(vault, {"w": data_here(data)}, engine="cuda")
    assert splits(machine) == 0
    assert_restored(vault, {"w": data})


def data_here(data: bytes) -> array[float]:
    return array("f", data)
