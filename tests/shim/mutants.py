"""Runs the brief checks on damaged kernels, each in a process of its own: what survives, the checks do not see.

`python -m shim.mutants FOLDER THREADS PLACE_THREADS STRIP SLOTS` leaves out one barrier of the library in FOLDER after
the other, and prints the places whose barriers nobody missed. With --once it runs the checks on FOLDER as it is.
"""

from __future__ import annotations

import os
import re
import resource
import sys
from pathlib import Path

from .building import KERNELS, Geometry
from .checks import check_all_briefly
from .device import ShimDevice

SEEDS = (1, 2)
# Of a process's processor time, of which the checks need one or two: a damaged kernel may never end.
SECONDS_MAX = 60
_BARRIER = re.compile(r"^\s*__sync(threads|warp)\(\);", re.MULTILINE)


def barrier_places() -> list[tuple[str, int]]:
    """(file, line) of every barrier in the kernels."""
    places = []
    for path in sorted((KERNELS / "cuda").glob("*.cu*")):
        text = path.read_text(encoding="utf-8")
        assert len(_BARRIER.findall(text)) == text.count("__sync"), f"a barrier in {path.name} does not stand alone"
        places += [(path.name, text.count("\n", 0, found.end()) + 1) for found in _BARRIER.finditer(text)]
    return places


def is_caught(folder: Path, geometry: Geometry, place: tuple[str, int]) -> bool:
    """Whether the checks fail without this barrier, or the process dies."""
    child = os.fork()
    if child == 0:
        code = 0
        try:
            _check_without(folder, geometry, place)
        except AssertionError:
            code = 1
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] != 0


def _check_without(folder: Path, geometry: Geometry, place: tuple[str, int]) -> None:
    for seed in SEEDS:
        device = ShimDevice(folder, geometry, seed)
        device.drop_barrier(*place)
        check_all_briefly(device)


def main() -> None:
    folder = Path(sys.argv[1])
    geometry = Geometry(*map(int, sys.argv[2:6]))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS_MAX, SECONDS_MAX))
    if "--once" in sys.argv:
        check_all_briefly(ShimDevice(folder, geometry, SEEDS[0]))
        return
    survivors = [place for place in barrier_places() if not is_caught(folder, geometry, place)]
    print("\n".join(f"{file}:{line}" for file, line in survivors))


if __name__ == "__main__":
    main()
