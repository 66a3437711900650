"""Compiles kernels for real devices, without one: NVRTC from its Python package, and what its assembler reports."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

_REPORT = re.compile(
    r"^ptxas info    : Compiling entry function '(?P<name>\w+)' .*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>.*?)$",
    re.MULTILINE | re.DOTALL,
)
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True, slots=True)
class Usage:
    """What a kernel needs: registers and local memory of a thread, static shared memory of a block, in bytes."""

    registers: int
    local_size: int
    shared_size: int


def find_library() -> Path | None:
    """libnvrtc of the package nvidia-cuda-nvrtc-cu12 or nvidia-cuda-nvrtc; None when neither is installed."""
    spec = importlib.util.find_spec("nvidia")
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    found = [path for place in places for path in sorted(Path(place).glob("*/lib/libnvrtc.so.*"))]
    return found[0] if found else None


class Nvrtc:
    """The runtime compiler."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def usage(self, source: Path, architecture: str, include_folders: list[Path], *options: str) -> dict[str, Usage]:
        """Compile a kernel file to machine code, and say what each kernel of it needs.

        AssertionError when it does not compile, or not without a warning.
        """
        log = self._compile(source, architecture, include_folders, options)
        others = [line for line in log.splitlines() if line and not line.startswith("ptxas ")]
        assert others == [], "\n".join(others)
        return {report["name"]: _usage(report) for report in _REPORT.finditer(log)}

    def _compile(self, source: Path, architecture: str, folders: list[Path], options: tuple[str, ...]) -> str:
        library, program = self._library, ctypes.c_void_p()
        text = source.read_bytes()
        self._check(library.nvrtcCreateProgram(ctypes.byref(program), text, source.name.encode(), 0, None, None))
        try:
            flags = [f"--gpu-architecture={architecture}", "--std=c++17", "--ptxas-options=-v", *options]
            flags += [f"--include-path={folder}" for folder in folders]
            encoded = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
            result = library.nvrtcCompileProgram(program, len(flags), encoded)
            log = self._log(program)
            assert result == 0, f"{source.name} for {architecture}: {log}"
            return log
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))

    def _log(self, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        self._check(self._library.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
        content = ctypes.create_string_buffer(size.value)
        self._check(self._library.nvrtcGetProgramLog(program, content))
        return content.value.decode()

    @staticmethod
    def _check(result: int) -> None:
        assert result == 0, f"NVRTC error {result}"


def _usage(report: re.Match[str]) -> Usage:
    local = sum(int(report[part]) for part in ("stack", "stores", "loads"))
    shared = _SHARED.search(report["rest"])
    return Usage(int(report["registers"]), local, int(shared[1]) if shared else 0)
