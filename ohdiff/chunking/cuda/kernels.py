"""The compiled kernels and how they are launched: grids and parameters as kernels/cuda/README.md lists them.

Every pointer is an integer address; whoever calls has bound the device and owns all buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ohdiff.errors import DeviceError

from .device import CudaDevice

# The defaults of kernels/cuda/README.md, which the sources are compiled with.
THREADS: Final = 128
PLACE_THREADS: Final = 256
STRIP: Final = 512
SLOTS: Final = 128
TILE: Final = THREADS * STRIP
LEAF: Final = 1024
WARP: Final = 32
# Positions in a batch are 32 bits, and a batch may have this many bytes.
BATCH_SIZE_MAX: Final = 1 << 31
_SEGMENTS_PER_BLOCK: Final = THREADS // WARP
_MODULES: Final = {
    "candidates": ("ohdiff_find_candidates", "ohdiff_place_tiles", "ohdiff_list_candidates"),
    "select": ("ohdiff_select_cuts", "ohdiff_place_cuts", "ohdiff_gather_cuts"),
    "blake3": ("ohdiff_place_leaves", "ohdiff_hash_leaves", "ohdiff_hash_trees"),
    "features": ("ohdiff_find_features",),
}


def source_folders() -> list[Path]:
    """Where the sources and the headers that they include lie: in an installed wheel, or in the source tree.

    Raises
    ------
    DeviceError
        They are in neither place.
    """
    here = Path(__file__).resolve()
    installed = here.parents[1] / "cuda_sources"
    if (installed / "candidates.cu").exists():
        return [installed]
    tree = here.parents[3] / "kernels"
    if (tree / "cuda" / "candidates.cu").exists():
        return [tree / "cuda", tree]
    raise DeviceError("the sources of the CUDA kernels are missing", hint="install ohdiff again", item="cuda")


class Kernels:
    """The kernels on one device; DeviceError with the compiler's log if one does not compile.

    Each method launches into a stream and returns at once. Parameters are named as in the README's tables.
    """

    def __init__(self, device: CudaDevice) -> None:
        folders = source_folders()
        defines = f"#define OHDIFF_THREADS {THREADS}\n#define OHDIFF_PLACE_THREADS {PLACE_THREADS}\n"
        defines += f"#define OHDIFF_STRIP {STRIP}\n#define OHDIFF_SLOTS {SLOTS}\n"
        self._functions: dict[str, Any] = {}
        for name, functions in _MODULES.items():
            source = (folders[0] / f"{name}.cu").read_text(encoding="utf-8")
            module = device.compile(f"{name}.cu", defines + source, folders)
            for function in functions:
                self._functions[function] = module.get_function(function)

    def find_candidates(
        self, stream: Any, data: int, size: int, terms: int, threshold: int, slots: int, counts: int
    ) -> None:
        """Fill `slots` and `counts`."""
        self._launch(
            stream, "ohdiff_find_candidates", tiles_of(size), THREADS, (data, size, terms, threshold, slots, counts)
        )

    def place_tiles(
        self, stream: Any, counts: int, tiles: int, capacity: int, first: int, unlisted: int, unlisted_count: int
    ) -> None:
        """Fill `first`, `unlisted` and `unlisted_count`."""
        self._launch(
            stream,
            "ohdiff_place_tiles",
            1,
            PLACE_THREADS,
            (counts, tiles, capacity, first, unlisted, unlisted_count),
        )

    def list_candidates(
        self,
        stream: Any,
        data: int,
        size: int,
        terms: int,
        threshold: int,
        slots: int,
        counts: int,
        first: int,
        candidates: int,
    ) -> None:
        """Fill the list."""
        arguments = (data, size, terms, threshold, slots, counts, first, candidates)
        self._launch(stream, "ohdiff_list_candidates", tiles_of(size), THREADS, arguments)

    def select_cuts(self, stream: Any, segments: int, arguments: Sequence[int]) -> None:
        """Fill `found` and `cut_counts`; `arguments` are all of the kernel's, in its order."""
        self._launch(stream, "ohdiff_select_cuts", _ceil(segments, _SEGMENTS_PER_BLOCK), THREADS, tuple(arguments))

    def place_cuts(self, stream: Any, cut_counts: int, segments: int, cut_first: int) -> None:
        """Fill `cut_first`."""
        self._launch(stream, "ohdiff_place_cuts", 1, PLACE_THREADS, (cut_counts, segments, cut_first))

    def gather_cuts(
        self, stream: Any, segment_ends: int, segments: int, min_size: int, found: int, cut_first: int, bounds: int
    ) -> None:
        """Fill `bounds`."""
        self._launch(
            stream,
            "ohdiff_gather_cuts",
            _ceil(segments, _SEGMENTS_PER_BLOCK),
            THREADS,
            (segment_ends, segments, min_size, found, cut_first, bounds),
        )

    def hash_chunks(
        self,
        stream: Any,
        data: int,
        size: int,
        bounds: int,
        chunk_count: int,
        chunks_max: int,
        leaf_first: int,
        key: int,
        nodes: int,
        ids: int,
    ) -> None:
        """Fill `ids`: leaves are placed, hashed, and joined to trees."""
        leaves_max = size // LEAF + chunks_max
        self._launch(stream, "ohdiff_place_leaves", 1, PLACE_THREADS, (bounds, chunk_count, leaf_first))
        arguments = (data, size, bounds, chunk_count, leaf_first, key, nodes)
        self._launch(stream, "ohdiff_hash_leaves", _ceil(leaves_max, THREADS), THREADS, arguments)
        self._launch(stream, "ohdiff_hash_trees", chunks_max, THREADS, (chunk_count, leaf_first, key, nodes, ids))

    def find_features(
        self, stream: Any, data: int, size: int, terms: int, bounds: int, chunks: int, features: int
    ) -> None:
        """Fill `features` for the chunks between `bounds`."""
        arguments = (data, size, terms, bounds, bounds + 4, features)
        self._launch(stream, "ohdiff_find_features", chunks, THREADS, arguments)

    def _launch(self, stream: Any, name: str, blocks: int, threads: int, arguments: tuple[int, ...]) -> None:
        with stream:
            self._functions[name]((blocks,), (threads,), arguments)


def tiles_of(size: int) -> int:
    """Tiles of a batch."""
    return _ceil(size, TILE)


def _ceil(amount: int, unit: int) -> int:
    return -(-amount // unit)
