"""The choice of an engine and a kernel, and what the native chunker refuses."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ohdiff import _kernels
from ohdiff.chunking.cpu import CpuEngine, available_kernels
from ohdiff.chunking.engine import select_engine
from ohdiff.chunking.rule import ChunkingRule
from ohdiff.errors import EXIT_DEVICE, DeviceError, UsageError

RULE = ChunkingRule.from_key(bytes(32), avg_size=65536)
ID_KEY = bytes(range(32))
KERNELS = ["avx512", "avx2", "neon", "scalar"]
ARGUMENTS = {
    "words": RULE.words,
    "min_size": RULE.min_size,
    "avg_size": RULE.avg_size,
    "max_size": RULE.max_size,
    "threshold_strict": RULE.threshold_strict,
    "threshold_loose": RULE.threshold_loose,
    "kernel": "scalar",
}


def test_auto_takes_the_best_kernel_and_says_so() -> None:
    choice = select_engine("auto", "auto", RULE, ID_KEY)
    assert (choice.engine.name, choice.engine.kernel) == ("cpu", available_kernels()[0])
    assert "engine cpu" in choice.reason
    assert f"kernel {available_kernels()[0]}" in choice.reason


def test_a_demand_is_met_and_said_to_be_one() -> None:
    for kernel in available_kernels():
        choice = select_engine("cpu", kernel, RULE, ID_KEY)
        assert choice.engine.kernel == kernel
        assert choice.reason == f"engine cpu: as demanded; kernel {kernel}: as demanded"


def test_an_unknown_engine_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="unknown engine"):
        select_engine("opencl", "auto", RULE, ID_KEY)


@pytest.mark.parametrize("kernel", ["sse9", "", "AVX2", "scalar "])
def test_an_unknown_kernel_is_an_error_and_never_replaced(kernel: str) -> None:
    with pytest.raises(DeviceError, match="cannot run") as caught:
        select_engine("auto", kernel, RULE, ID_KEY)
    assert caught.value.exit_code == EXIT_DEVICE
    assert "scalar" in caught.value.hint


def test_a_kernel_of_another_processor_is_an_error() -> None:
    for kernel in set(KERNELS) - set(available_kernels()):
        with pytest.raises(DeviceError, match="cannot run"):
            CpuEngine(RULE, ID_KEY, kernel)
        with pytest.raises(ValueError, match="cannot run"):
            _kernels.Chunker(**{**ARGUMENTS, "kernel": kernel})  # type: ignore[arg-type]


def test_kernels_are_listed_best_first_and_the_portable_one_is_always_there() -> None:
    assert available_kernels() == [kernel for kernel in KERNELS if kernel in available_kernels()]
    assert available_kernels()[-1] == "scalar"


def test_the_contract_can_be_imported_without_native_kernels() -> None:
    check = "import sys, ohdiff.chunking.engine; sys.exit('ohdiff._kernels' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_an_id_key_has_32_bytes() -> None:
    with pytest.raises(UsageError):
        CpuEngine(RULE, b"short")


def test_a_chunker_says_what_it_was_made_of() -> None:
    chunker = _kernels.Chunker(**ARGUMENTS)  # type: ignore[arg-type]
    assert {name: getattr(chunker, name) for name in ARGUMENTS if name != "words"} == {
        name: value for name, value in ARGUMENTS.items() if name != "words"
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"words": bytes(124)}, "32 integers"),
        ({"words": bytes(128)}, "run of one byte"),
        ({"min_size": 127}, "below 128"),
        ({"min_size": 65536}, "min < avg"),
        ({"avg_size": 262144}, "avg < max"),
        ({"max_size": (1 << 30) + 1}, "1 GiB"),
        ({"threshold_strict": 0}, "thresholds"),
        ({"threshold_strict": 1 << 20}, "thresholds"),
        ({"threshold_loose": 2**32 - 1}, "run of one byte"),
        ({"kernel": "x"}, "cannot run here: x"),
    ],
)
def test_the_native_chunker_checks_for_itself(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _kernels.Chunker(**{**ARGUMENTS, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["min_size", "threshold_loose"])
@pytest.mark.parametrize("value", [-1, 2**64, 1.5, "1"])
def test_numbers_that_are_no_sizes_are_type_errors(name: str, value: object) -> None:
    with pytest.raises(TypeError):
        _kernels.Chunker(**{**ARGUMENTS, name: value})  # type: ignore[arg-type]


def test_what_is_no_contiguous_buffer_is_refused() -> None:
    chunker = _kernels.Chunker(**ARGUMENTS)  # type: ignore[arg-type]
    for call in (chunker.candidates, lambda data: chunker.cut_stream(data, True)):
        with pytest.raises(TypeError):
            call("text")  # type: ignore[operator]
        with pytest.raises(BufferError):
            call(memoryview(bytes(100))[::2])  # type: ignore[operator]


@pytest.mark.parametrize("ends", [[-1], [2**64], ["1"], [1.5], 7, None])
def test_offsets_of_another_kind_are_type_errors(ends: object) -> None:
    chunker = _kernels.Chunker(**ARGUMENTS)  # type: ignore[arg-type]
    for call in (chunker.cut_segments, chunker.features):
        with pytest.raises(TypeError, match=r"uint64 or integers|incompatible"):
            call(bytes(100), ends)  # type: ignore[arg-type]


def test_offsets_as_bytes_must_be_whole_integers() -> None:
    chunker = _kernels.Chunker(**ARGUMENTS)  # type: ignore[arg-type]
    for call in (chunker.cut_segments, chunker.features):
        with pytest.raises(ValueError, match="64-bit integers"):
            call(bytes(100), bytes(7))


def test_a_buffer_is_let_go_after_a_call_that_fails() -> None:
    chunker = _kernels.Chunker(**ARGUMENTS)  # type: ignore[arg-type]
    data = bytearray(100)
    for ends in ([101], [-1], b"1"):
        with pytest.raises((TypeError, ValueError)):
            chunker.cut_segments(data, ends)
    data.extend(b"more")
