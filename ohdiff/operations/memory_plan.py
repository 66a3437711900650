"""How many threads and blocks in flight a snapshot may have, given its memory and processors. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ohdiff.errors import UsageError

_MIB: Final = 1 << 20
# The interpreter with all modules, the index's filters, open blocks of data and metadata, trees in the making, and the
# block that is being sealed. Measured with one reader, two encoders and two blocks: 174 MB on checkpoints, 144 MB on a
# source tree.
_BASE_BYTES: Final = 80 * _MIB
# A reader holds its batch, and one that waits to be taken.
_READER_BYTES: Final = 16 * _MIB
# An encoder holds what it compressed, and the block of bases that it works along.
_ENCODER_BYTES: Final = 16 * _MIB
# A block in flight: 8 MiB plain at first, later plain and compressed together.
_BLOCK_BYTES: Final = 16 * _MIB
_READERS_MAX: Final = 8
_ENCODERS_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The background threads and the blocks in flight; `size_bytes` is the most that they are expected to take."""

    readers: int
    encoders: int
    queue_depth: int

    @property
    def size_bytes(self) -> int:
        """Resident memory at the peak."""
        threads = self.readers * _READER_BYTES + self.encoders * _ENCODER_BYTES
        return _BASE_BYTES + threads + self.queue_depth * _BLOCK_BYTES


_LEAST: Final = MemoryPlan(1, 1, 1)


def plan_memory(memory_bytes: int | None, processors: int, readers: int | None = None) -> MemoryPlan:
    """The plan that uses the processors best and stays within the memory.

    Parameters
    ----------
    memory_bytes : the ceiling, None for what the processors are worth: 160 MiB on two of them.
    readers : a wanted number of readers, which gives way to nothing.

    Raises
    ------
    UsageError
        The ceiling is too low for any plan.
    """
    for workers in range(max(1, min(processors, _ENCODERS_MAX)), 0, -1):
        plan = MemoryPlan(readers or min(max(1, workers // 2), _READERS_MAX), workers, workers)
        if memory_bytes is None or plan.size_bytes <= memory_bytes:
            return plan
    least = MemoryPlan(readers or _LEAST.readers, _LEAST.encoders, _LEAST.queue_depth)
    if memory_bytes is not None and least.size_bytes > memory_bytes:
        raise UsageError(f"a snapshot needs at least {least.size_bytes // _MIB} MiB of memory", hint="raise --memory")
    return least
