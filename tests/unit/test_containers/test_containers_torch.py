"""torch's zip files: storages found by the central directory, described by a pickle that nobody loads."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import pytest
from support import container_files as files
from support.container_files import MemorySource, dict_op, tensor_op, torch_file, with_zip64, zip_file

from ohdiff.chunking.containers import Container, pickle_scan, read_container
from ohdiff_format.numbers import NumberKind

PICKLES = Path(__file__).parent / "pickles"
ARRAYS = {"w": ("FloatStorage", (3, 4)), "b": ("BFloat16Storage", (5,)), "mask": ("BoolStorage", (7,))}


def read(data: bytes) -> Container | None:
    return read_container(MemorySource(data))


def names_and_kinds(data: bytes) -> list[tuple[str, NumberKind | None]]:
    container = read(data)
    assert container is not None
    assert container.format == "torch"
    return [(tensor.name, tensor.kind) for tensor in container.tensors]


def with_pickle(body: bytes, arrays: files.Arrays = ARRAYS) -> bytes:
    return torch_file(arrays, b"\x80\x02" + body + b".")


def test_storages_have_the_names_kinds_and_shapes_that_the_pickle_tells() -> None:
    data = torch_file(ARRAYS)
    container = read(data)
    assert container is not None
    told = [(tensor.name, tensor.kind, tensor.dtype, tensor.shape) for tensor in container.tensors]
    assert told == [
        ("w", NumberKind.F32, "FloatStorage", (3, 4)),
        ("b", NumberKind.BF16, "BFloat16Storage", (5,)),
        ("mask", None, "BoolStorage", (7,)),
    ]
    for row, tensor in enumerate(container.tensors):
        assert data[tensor.start : tensor.end] == files.filler(tensor.size, row)


def test_names_are_the_path_of_keys() -> None:
    tensor = tensor_op("FloatStorage", "0", (12,))
    assert names_and_kinds(with_pickle(dict_op({"model": dict_op({"layer.0": b"](" + tensor + b"e"})})))[0] == (
        "model.layer.0.0",
        NumberKind.F32,
    )


def test_two_equal_paths_are_told_apart() -> None:
    first, second = tensor_op("FloatStorage", "0", (12,)), tensor_op("BFloat16Storage", "1", (5,))
    found = names_and_kinds(with_pickle(dict_op({"a": dict_op({"b": first}), "a.b": second})))
    assert len({name for name, _ in found}) == 3
    assert [kind for _, kind in found] == [NumberKind.F32, NumberKind.BF16, None]


def test_a_storage_is_named_by_the_tensor_that_is_all_of_it() -> None:
    view = tensor_op("FloatStorage", "0", (2,), count=12, offset=3)
    whole = tensor_op("FloatStorage", "0", (4, 3))
    container = read(with_pickle(dict_op({"view": view, "whole": whole})))
    assert container is not None
    assert (container.tensors[0].name, container.tensors[0].shape) == ("whole", (4, 3))
    container = read(with_pickle(dict_op({"view": view})))
    assert container is not None
    assert (container.tensors[0].name, container.tensors[0].shape) == ("view", (12,))


REAL_SIZES = {
    "kinds": [
        *(40_000, 80_000, 80_000, 160_000, 40_000, 320_000, 80_000, 320_000, 320_000),
        *(160_000, 160_000, 160_000, 640_000, 160_000, 40_000),
    ],
    "protocol4": [160_000, 160_000],
    "module": [480_000, 1600, 800_000, 2000],
}


def read_real(name: str) -> list[tuple[str, NumberKind | None]]:
    """A pickle that PyTorch 2.13 wrote, over storages of the sizes that it had."""
    entries = {f"{name}/data.pkl": (PICKLES / f"{name}.pkl").read_bytes()}
    entries |= {f"{name}/data/{row}": bytes(size) for row, size in enumerate(REAL_SIZES[name])}
    return names_and_kinds(zip_file(entries))


def test_pickles_of_the_real_writer_are_understood() -> None:
    assert read_real("kinds") == [
        ("f8", NumberKind.F8),
        ("u16", NumberKind.I16),
        ("bf", NumberKind.BF16),
        ("a", NumberKind.F32),
        ("b", None),
        ("c", None),
        ("h", NumberKind.F16),
        ("d", NumberKind.F64),
        ("l", NumberKind.I64),
        ("p", NumberKind.F32),
        ("list.0", NumberKind.F32),
        ("list.1.0", NumberKind.F32),
        ("sp#12", NumberKind.I64),
        ("sp#13", NumberKind.F32),
        ("data/14", None),
    ]
    assert read_real("protocol4") == [("x", NumberKind.F32), ("y", NumberKind.F32)]
    layers = [f"_modules.{layer}._parameters.{part}" for layer in (0, 1) for part in ("weight", "bias")]
    assert read_real("module") == [(name, NumberKind.F32) for name in layers]


@pytest.mark.parametrize(
    "pickled",
    [
        b"",
        b".",
        b"\x80\x02",
        b"\x80\x02}",
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x02" + b"(" * 100_000,
        b"\x80\x02X\xff\xff\xff\xffabc.",
        b"\x80\x02\x8d" + b"\xff" * 8 + b".",
        b"\x80\x02h\x05.",
        b"\x80\x02u.",
        b"\x80\x02NNs.",
        b"\x80\x02NQ.",
        b"\x80\x02)Q.",
        b"\x80\x02}(Nu.",
        b"\x80\x02\x87.",
        b"\x80\x02\x97.",
        b"\x80\x02c" + b"a" * 10_000 + b"\nb\n.",
        b"\x80\x02" + tensor_op("FloatStorage", "0", (13,)) + b".",
        b"\x80\x02" + tensor_op("NoStorage", "0", (12,)) + b".",
        b"\x80\x02" + tensor_op("FloatStorage", "7", (12,)) + b".",
        b"\x80\x02" + tensor_op("FloatStorage", "0", (12,)).replace(b"ctorch\n", b"cevil\n") + b".",
        b"\x80\x02(" + tensor_op("FloatStorage", "0", (12,)) + tensor_op("IntStorage", "0", (12,)) + b"t.",
    ],
    ids=lambda pickled: repr(pickled[:40]),
)
def test_what_cannot_be_understood_costs_the_kind_and_the_name_only(pickled: bytes) -> None:
    found = names_and_kinds(torch_file(ARRAYS, pickled))
    assert found[0][1] is None
    assert len(found) == 3


def test_a_pickle_runs_nothing(tmp_path: Path) -> None:
    target = tmp_path / "made"
    call = b"cos\nmkdir\n" + files.text_op(str(target)) + b"\x85R"
    found = names_and_kinds(with_pickle(dict_op({"call": call, "w": tensor_op("FloatStorage", "0", (12,))})))
    assert found[0] == ("w", NumberKind.F32)
    assert not target.exists()


def test_shared_cyclic_and_deep_values_are_visited_once() -> None:
    tensor = tensor_op("FloatStorage", "0", (12,))
    doubled = b"]q\x00" + b"".join(b"(h%ch%ctq%c" % (row, row, row + 1) for row in range(200))
    assert names_and_kinds(with_pickle(b"(" + doubled + tensor + b"t"))[0][1] is NumberKind.F32
    assert names_and_kinds(with_pickle(b"]q\x00(h\x00" + tensor + b"e"))[0] == ("1", NumberKind.F32)
    for key in ("", "k"):
        nested = (b"}" + files.text_op(key)) * 50_000 + dict_op({"x": tensor}) + b"s" * 50_000
        assert names_and_kinds(with_pickle(nested))[0] == ("data/0", NumberKind.F32)


def test_one_long_key_behind_many_tensors_is_not_copied_for_each() -> None:
    key = files.text_op("k" * 1_000_000) + b"q\x09"
    values = b"".join(b"h\x09" + tensor_op("FloatStorage", "0", (12,)) for _ in range(2000))
    assert names_and_kinds(with_pickle(b"](" + key + b"t0}(" + values + b"u"))[0] == ("?", NumberKind.F32)


def test_a_pickle_of_too_many_instructions_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    pickled = b"\x80\x02" + b"N0" * 40 + tensor_op("FloatStorage", "0", (12,)) + b"."
    assert names_and_kinds(torch_file(ARRAYS, pickled))[0][1] is NumberKind.F32
    monkeypatch.setattr(pickle_scan, "INSTRUCTIONS_MAX", 80)
    assert names_and_kinds(torch_file(ARRAYS, pickled))[0][1] is None


def test_big_endian_files_have_no_kinds() -> None:
    assert {kind for _, kind in names_and_kinds(torch_file(ARRAYS, byteorder=b"big"))} == {None}


def test_compressed_entries_are_no_tensors() -> None:
    entries = {"a/data.pkl": b"\x80\x02N.", "a/data/0": bytes(1000)}
    assert read(zip_file(entries, zipfile.ZIP_DEFLATED)) is None
    assert read(zip_file({"a/data.pkl": b"\x80\x02N."})) is None


def test_a_run_of_archives_is_one_container() -> None:
    one, two = torch_file({"a": ("FloatStorage", (5,))}), torch_file({"a": ("HalfStorage", (6,))})
    container = read(one + two)
    assert container is not None
    assert [(tensor.name, tensor.kind) for tensor in container.tensors] == [
        ("0/a", NumberKind.F32),
        ("1/a", NumberKind.F16),
    ]
    second = container.tensors[1]
    assert (one + two)[second.start : second.end] == files.filler(12, 0)
    assert read(one + b"x" + two) is None
    assert read(one + two + b"x") is None


def changed(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


def test_headers_that_contradict_one_another_are_no_archive() -> None:
    data = torch_file(ARRAYS)
    local = data.rindex(b"PK\x03\x04", 0, data.index(b"archive/data/0"))
    central = data.rindex(b"PK\x01\x02", 0, data.rindex(b"archive/data/0"))
    end, end64 = data.rindex(b"PK\x05\x06"), data.rindex(b"PK\x06\x06")
    locator = data.rindex(b"PK\x06\x07")
    assert read(data) is not None
    for at, value in [
        (local, b"PK\x03\x05"),
        (local + 8, struct.pack("<H", 8)),
        (local + 26, struct.pack("<H", 13)),
        (local + 28, struct.pack("<H", 60_000)),
        (local + 30, b"A"),
        (central, b"PK\x01\x03"),
        (central + 20, struct.pack("<I", 49)),
        (central + 24, struct.pack("<I", 49)),
        (central + 20, struct.pack("<II", 1 << 20, 1 << 20)),
        (central + 20, struct.pack("<II", 0xFFFF_FFFF, 0xFFFF_FFFF)),
        (central + 28, struct.pack("<H", 9)),
        (central + 30, struct.pack("<H", 9)),
        (central + 34, struct.pack("<H", 1)),
        (central + 42, struct.pack("<I", 0)),
        (central + 42, struct.pack("<I", 0xFFFF_FFFE)),
        (end + 4, struct.pack("<H", 1)),
        (end + 8, struct.pack("<HH", 2, 2)),
        (end + 10, struct.pack("<H", 5)),
        (end + 12, struct.pack("<I", 1)),
        (end + 16, struct.pack("<I", 1)),
        (end + 20, struct.pack("<H", 1)),
        (end64 + 4, struct.pack("<Q", 45)),
        (end64 + 16, struct.pack("<I", 1)),
        (end64 + 24, struct.pack("<QQ", 1 << 40, 1 << 40)),
        (end64 + 40, struct.pack("<Q", 1 << 62)),
        (end64 + 48, struct.pack("<Q", 7)),
        (locator + 8, struct.pack("<Q", 0)),
        (locator + 16, struct.pack("<I", 2)),
    ]:
        assert read(changed(data, at, value)) is None, (at, value)


def test_narrow_fields_may_point_to_the_wide_ones() -> None:
    data = torch_file(ARRAYS)
    end = data.rindex(b"PK\x05\x06")
    wide = changed(data, end + 8, struct.pack("<HHII", 0xFFFF, 0xFFFF, 0xFFFF_FFFF, 0xFFFF_FFFF))
    assert read(wide) == read(data)


def test_a_64_bit_entry_is_read_from_its_extra_field() -> None:
    body = files.filler(48)
    local = struct.pack("<4sHHHHHIIIHH", b"PK\x03\x04", 45, 0, 0, 0, 0, 0, 0xFFFF_FFFF, 0xFFFF_FFFF, 8, 0) + b"a/data/0"
    pickled = b"\x80\x02" + tensor_op("FloatStorage", "0", (12,)) + b"."
    rest = struct.pack("<4sHHHHHIIIHH", b"PK\x03\x04", 45, 0, 0, 0, 0, 0, 0, 0, 10, 0) + b"a/data.pkl" + pickled

    def central(name: bytes, size: int, offset: int, extra: bytes) -> bytes:
        fields = (45, 45, 0, 0, 0, 0, 0, size, size, len(name), len(extra), 0, 0, 0, 0, offset)
        return struct.pack("<4sHHHHHHIIIHHHHHII", b"PK\x01\x02", *fields) + name + extra

    def archive(extra: bytes) -> bytes:
        front = local + body + rest
        table = central(b"a/data/0", 0xFFFF_FFFF, 0xFFFF_FFFF, extra)
        table += central(b"a/data.pkl", len(pickled), len(local) + 48, b"")
        return front + table + struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 2, 2, len(table), len(front), 0)

    right = struct.pack("<HH3Q", 1, 24, 48, 48, 0)
    padding = struct.pack("<HHI", 0x4246, 4, 0)
    assert names_and_kinds(archive(padding + right)) == [("data/0", NumberKind.F32)]
    for wrong in (b"", right[:-8], struct.pack("<HH2Q", 1, 16, 48, 48), struct.pack("<HH3Q", 1, 24, 48, 48, 1 << 63)):
        assert read(archive(wrong)) is None


def test_overlapping_and_equal_entries_are_no_archive() -> None:
    plain = zip_file({"a/data.pkl": b"\x80\x02N.", "a/data/0": bytes(100), "a/data/1": bytes(100)})
    first = plain.index(b"PK\x03\x04", 4)
    third = plain.rindex(b"PK\x01\x02")
    assert read(plain) is not None
    twin = plain.replace(b"a/data/1", b"a/data/0")
    assert read(twin) is None
    assert read(changed(twin, third + 42, struct.pack("<I", first))) is None


def test_an_entry_inside_another_is_no_archive() -> None:
    inner = zip_file({"a/data/0": bytes(100)})
    plain = zip_file({"a/data.pkl": b"\x80\x02N.", "note": inner[: inner.index(b"PK\x01\x02")], "a/data/0": bytes(100)})
    offset_at = plain.rindex(b"PK\x01\x02") + 42
    assert read(plain) is not None
    assert read(changed(plain, offset_at, struct.pack("<I", plain.index(b"PK\x03\x04", 70)))) is None


def test_data_that_reaches_into_the_directory_is_no_archive() -> None:
    plain = zip_file({"a/data.pkl": b"\x80\x02N.", "a/data/0": bytes(100)})
    assert read(changed(plain, plain.rindex(b"PK\x03\x04") + 28, struct.pack("<H", 20))) is None


def test_a_directory_with_anything_after_its_entries_is_no_archive() -> None:
    plain = zip_file({"a/data.pkl": b"\x80\x02N.", "a/data/0": bytes(100)})
    body, end = plain[:-22], bytearray(plain[-22:])
    end[12] += 4
    assert read(body + b"junk" + bytes(end)) is None


def test_every_truncation_is_no_container() -> None:
    data = torch_file(ARRAYS)
    assert all(read(data[:size]) is None for size in range(len(data)))


def test_a_comment_ends_the_last_archive_only() -> None:
    plain = zip_file({"a/data.pkl": b"\x80\x02N.", "a/data/0": bytes(100)})
    commented = plain[:-2] + struct.pack("<H", 5) + b"hello"
    assert read(commented) is not None
    assert read(commented + plain) is None
    assert read(with_zip64(plain) + plain) is not None
