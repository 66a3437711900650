"""Every CUDA kernel compiles for every architecture, within its budget of registers and shared memory, and spills none.

NVRTC comes from a package of the `dev` extra. Where it is missing these tests are skipped, unless OHDIFF_REQUIRE_NVRTC
is set.
"""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

import pytest
from shim.building import KERNELS, MODULES
from shim.nvrtc import Nvrtc, Usage, find_library

ARCHITECTURES = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]
KERNEL_COUNT = 18
SHARED_SIZE_MAX = 48 << 10
# With 64 registers a thread, 1024 threads fit the 65,536 registers of a multiprocessor.
REGISTERS_MAX = 64
SOURCES = KERNELS / "cuda"
INCLUDES = [SOURCES, KERNELS]


@pytest.fixture(scope="module")
def nvrtc() -> Nvrtc:
    library = find_library()
    if library is None:
        if os.environ.get("OHDIFF_REQUIRE_NVRTC"):
            pytest.fail("NVRTC is not installed")
        pytest.skip("NVRTC is not installed; OHDIFF_REQUIRE_NVRTC makes this a failure")
    return Nvrtc(library)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_compile_within_their_budget(nvrtc: Nvrtc, architecture: str) -> None:
    usage: dict[str, Usage] = {}
    for module in MODULES:
        usage |= nvrtc.usage(SOURCES / f"{module}.cu", architecture, INCLUDES)
    assert len(usage) == KERNEL_COUNT
    assert {name: used for name, used in usage.items() if used.local_size != 0} == {}
    assert {name: used for name, used in usage.items() if used.registers > REGISTERS_MAX} == {}
    assert {name: used for name, used in usage.items() if used.shared_size > SHARED_SIZE_MAX} == {}


def test_what_a_kernel_needs_is_seen(nvrtc: Nvrtc, tmp_path: Path) -> None:
    text = (SOURCES / "blake3.cu").read_text(encoding="utf-8")
    assert text.count("1024 / OHDIFF_THREADS") == 1
    crowded = tmp_path / "crowded.cu"
    crowded.write_text(text.replace("1024 / OHDIFF_THREADS", "2048 / OHDIFF_THREADS"), encoding="utf-8")
    tight = nvrtc.usage(crowded, "sm_80", INCLUDES)["ohdiff_hash_leaves"]
    assert tight.local_size > 0
    assert tight.registers <= 32
    candidates = SOURCES / "candidates.cu"
    usual = nvrtc.usage(candidates, "sm_80", INCLUDES)["ohdiff_find_candidates"]
    wide = nvrtc.usage(candidates, "sm_80", INCLUDES, "-DOHDIFF_SLOTS=1024")["ohdiff_find_candidates"]
    assert wide.shared_size == usual.shared_size + 8 * (1024 - 128)


def test_a_warning_is_a_failure(nvrtc: Nvrtc, tmp_path: Path) -> None:
    source = tmp_path / "odd.cu"
    source.write_text(
        '__device__ int nothing() {}\nextern "C" __global__ void odd(int* to) { *to = nothing(); }\n', encoding="utf-8"
    )
    with pytest.raises(AssertionError, match="missing return"):
        nvrtc.usage(source, "sm_80", [])


def test_the_installed_package_holds_the_sources_that_nvrtc_needs() -> None:
    package = Path(str(resources.files("ohdiff"))).resolve()
    if package == KERNELS.parent / "ohdiff":
        pytest.skip("the package is used in place, not installed")
    installed = package / "chunking" / "cuda_sources"
    shared = [KERNELS / name for name in ("boundary_rule.hpp", "number_codes.hpp", "number_transforms.hpp")]
    sources = [*SOURCES.glob("*.cu*"), *shared]
    assert {path.name for path in installed.iterdir()} == {path.name for path in sources}
    for path in sources:
        assert (installed / path.name).read_bytes() == path.read_bytes()
