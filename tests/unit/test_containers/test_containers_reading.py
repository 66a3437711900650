"""The face of the package: what is opened at all, what is asked of a source, and which errors come through."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest
from support.container_files import MemorySource, gguf_file, npy_file, safetensors_file, torch_file

from ohdiff.chunking.containers import TENSOR_SIZE_BYTES_MIN, Tensor, may_be_container, read_container
from ohdiff.chunking.containers.tensors import MalformedError, judged
from ohdiff_format.numbers import NumberKind

FILES = {
    "safetensors": safetensors_file({"w": ("F32", (30, 40))}),
    "torch": torch_file({"w": ("FloatStorage", (30, 40))}),
    "npy": npy_file("<f4", (30, 40), bytes(4800)),
    "gguf": gguf_file({"w": ("F32", (30, 40))}),
}


@pytest.mark.parametrize(
    "name",
    [
        b"model.safetensors",
        b"a.PT",
        b"x.pth.tar",
        b"pytorch_model.bin",
        b"last.ckpt",
        b"a.npy",
        b"a.npz",
        b"a.gguf",
        b"__0_0.distcp",
        b"\xff.pth",
    ],
)
def test_files_with_known_endings_are_worth_opening(name: bytes) -> None:
    assert may_be_container(name, 1 << 20)
    assert not may_be_container(name, TENSOR_SIZE_BYTES_MIN)


@pytest.mark.parametrize("name", [b"a.tar", b"a.zip", b"a.txt", b"safetensors", b"model.safetensors.tmp", b""])
def test_other_files_are_not(name: bytes) -> None:
    assert not may_be_container(name, 1 << 30)


@pytest.mark.parametrize("name", list(FILES))
def test_the_first_bytes_decide_about_the_format(name: str) -> None:
    container = read_container(MemorySource(FILES[name]))
    assert container is not None
    assert container.format == name


@pytest.mark.parametrize("data", [b"", b"x", b"GGUF", b"PK\x03\x04", b"\x93NUMPY", b"\0" * 100, b"#!/bin/sh\n" * 50])
def test_short_and_foreign_files_are_no_container(data: bytes) -> None:
    assert read_container(MemorySource(data)) is None


def test_a_foreign_file_costs_one_small_read() -> None:
    source = MemorySource(bytes(1 << 20))
    assert read_container(source) is None
    assert source.reads == [(0, 16)]


class FailingSource(MemorySource):
    """Fails from a read on."""

    reads_before_failure = 0

    def read(self, offset: int, size: int) -> bytes:
        if len(self.reads) == self.reads_before_failure:
            raise OSError(errno.EIO, "input/output error")
        return super().read(offset, size)


class ShrunkSource(MemorySource):
    """A file that lost its end after its size was asked."""

    def read(self, offset: int, size: int) -> bytes:
        return super().read(offset, size)[: max(0, len(self.data) // 2 - offset)]


@pytest.mark.parametrize("name", list(FILES))
def test_errors_of_the_source_come_through(name: str) -> None:
    whole = MemorySource(FILES[name])
    read_container(whole)
    for count in range(len(whole.reads)):
        source = FailingSource(FILES[name])
        source.reads_before_failure = count
        with pytest.raises(OSError, match="input/output error"):
            read_container(source)


def test_a_file_that_shrinks_is_no_container() -> None:
    assert read_container(ShrunkSource(FILES["torch"])) is None
    assert read_container(ShrunkSource(b"PK\x03\x04" + bytes(100))) is None
    assert read_container(ShrunkSource(safetensors_file({f"name {row}": ("F32", ()) for row in range(50)}))) is None


def test_a_kind_with_another_size_than_its_shape_is_judged_a_lie() -> None:
    claim = Tensor("a", NumberKind.F32, "F32", (3,), 10, 22)
    assert judged("npy", [claim], 22).tensors == (claim,)
    for lie in (replace(claim, end=21), replace(claim, shape=(4,)), replace(claim, shape=(-1, -3))):
        with pytest.raises(MalformedError):
            judged("npy", [lie], 100)
