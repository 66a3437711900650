"""The machine and the software of a run, in words and figures, so that results can be told apart later."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from pathlib import Path

from benchmark.places import memory_figures

# The vector extensions that scan, hash and cipher choose between.
TELLING_FLAGS = ("avx2", "avx512bw", "avx512_vbmi2", "sha_ni", "vaes", "asimd", "sve", "aes", "pmull", "sha2")
LIBRARIES = ("ohdiff", "blake3", "cryptography", "zstandard", "xxhash")


def describe_machine() -> dict[str, object]:
    """Processor, memory, kernel, Python and the date."""
    facts = processor_facts()
    flags = facts.get("flags", facts.get("Features", "")).split()
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "processor": facts.get("model name", platform.processor() or platform.machine()),
        "architecture": platform.machine(),
        "processor flags": [flag for flag in TELLING_FLAGS if flag in flags],
        "cores": os.cpu_count(),
        "cores usable": usable_cores(),
        "memory bytes": memory_figures().get("MemTotal"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def machine_line(machine: dict[str, object]) -> str:
    """One sentence of `describe_machine` for the head of a table."""
    memory = machine["memory bytes"]
    size = f"{memory / 1e9:.0f} GB" if isinstance(memory, int) else "memory unknown"
    cores = f"{machine['cores usable']} cores"
    words = (machine["processor"], cores, size, machine["system"], f"Python {machine['python']}", machine["date"])
    return ", ".join(map(str, words))


def processor_facts() -> dict[str, str]:
    """The first processor of /proc/cpuinfo; empty where there is none."""
    try:
        first, _, _ = Path("/proc/cpuinfo").read_text().partition("\n\n")
    except FileNotFoundError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def usable_cores() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def library_versions() -> dict[str, str]:
    """The versions of the libraries that do the work of ohdiff, as far as they are installed here."""
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
