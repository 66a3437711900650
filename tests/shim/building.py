"""Builds the kernels as a C++ library, under cuda_shim.h."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SHIM = Path(__file__).resolve().parent
KERNELS = SHIM.parent.parent / "kernels"
MODULES = ("candidates", "select", "blake3", "features", "numbers")
RUNTIME = "runtime"
LIBRARY = "kernels.so"
COMPILER = os.environ.get("CXX", "g++")
SANITIZERS = (
    *("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
    *("-fsanitize-sections=shim_shared", "-fno-omit-frame-pointer"),
)


@dataclass(frozen=True, slots=True)
class Geometry:
    """What the kernels are compiled for: see kernels/cuda/README.md."""

    threads: int = 128
    place_threads: int = 256
    strip: int = 512
    slots: int = 128

    @property
    def tile(self) -> int:
        return self.threads * self.strip

    @property
    def warps(self) -> int:
        return self.threads // 32

    @property
    def defines(self) -> tuple[str, ...]:
        names = ("THREADS", "PLACE_THREADS", "STRIP", "SLOTS")
        values = (self.threads, self.place_threads, self.strip, self.slots)
        return tuple(f"-DOHDIFF_{name}={value}" for name, value in zip(names, values, strict=True))


DEFAULT = Geometry()
# Few bytes and few slots: borders of tiles everywhere, and most of them flooded.
SMALL = Geometry(threads=64, place_threads=64, strip=64, slots=4)


def build_object(
    module: str,
    folder: Path,
    geometry: Geometry = DEFAULT,
    sources: Path = KERNELS / "cuda",
    extra: tuple[str, ...] = (),
) -> None:
    """Compile one kernel file, or the runtime; AssertionError with the compiler's words when it cannot."""
    _run_compiler(
        *("-c", "-std=c++20", "-O1", "-fPIC", "-fno-strict-aliasing", "-Wall", "-Wextra", "-Wno-unknown-pragmas"),
        *("-Werror", f"-I{SHIM}", f"-I{sources}", f"-I{KERNELS}", *geometry.defines, *extra),
        *(str(SHIM / f"{module}.cpp"), "-o", str(folder / f"{module}.o")),
    )


def link(folder: Path, extra: tuple[str, ...] = ()) -> None:
    """Make the library of the objects in `folder`."""
    objects = [str(folder / f"{module}.o") for module in (*MODULES, RUNTIME)]
    _run_compiler("-shared", *extra, *objects, "-o", str(folder / LIBRARY))


def build_all(folder: Path, geometry: Geometry = DEFAULT, extra: tuple[str, ...] = ()) -> None:
    """Compile all kernel files, two at a time, and link them."""
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda module: build_object(module, folder, geometry, extra=extra), (*MODULES, RUNTIME)))
    link(folder, extra)


def _run_compiler(*arguments: str) -> None:
    done = subprocess.run([COMPILER, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
