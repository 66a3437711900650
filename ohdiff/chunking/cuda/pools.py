"""The lanes of an engine and the memory that they take: made as they are wanted, smaller where they do not fit.

There are two kinds, for data that comes from host memory and for data that lies on the device. Memory is given back
when somebody asks for it, all of it when the device is not used for a while, and taken again with the next lane.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, Final

from ohdiff.chunking.rule import ChunkingRule

from .device import CudaDevice, DeviceFaultError
from .lanes import LanePool, LaneSize

# Data that lies on the device takes no buffer, and a batch of 32 MiB would be over before the next is launched.
_RESIDENT_BATCH_BYTES: Final = 256 << 20
_RESIDENT_LANES: Final = 2
# Of the memory that is free, and of what lanes may take: a quarter each.
FREE_SHARE: Final = 4
_RESIDENT_SHARE: Final = 4
# A ceiling that follows memory which gets less and less is lowered by so much more, so as not to follow every step.
_TRIM_MARGIN: Final = 8

Pools = tuple[LanePool, LanePool]


class LanePools:
    """Both kinds of lanes below one ceiling; any thread may use, trim or park them.

    Parameters
    ----------
    memory : the pool that device memory comes from.
    batch_bytes : of a batch from host memory, at most.
    lanes_max : for such batches, at a time.
    memory_max : bytes that lanes may take.

    Attributes
    ----------
    shrunk : how often batches were made smaller for want of memory.
    """

    def __init__(
        self, device: CudaDevice, memory: Any, rule: ChunkingRule, batch_bytes: int, lanes_max: int, memory_max: int
    ) -> None:
        self.shrunk = 0
        self._device = device
        self._memory = memory
        self._rule = rule
        self._batch_bytes = batch_bytes
        self._lanes_max = lanes_max
        self._memory_most = self._memory_max = memory_max
        self._lock = threading.Lock()
        # What the engine holds besides lanes.
        self._other_bytes = int(memory.total_bytes())
        self._is_parked = False
        self._pools = self._made()

    @property
    def now(self) -> Pools:
        """The lanes for data in host memory, and those for data on the device."""
        with self._lock:
            if self._is_parked:
                self._is_parked = False
                with self._device.bound():
                    free = self._device.free_memory() // FREE_SHARE
                self._memory_max = min(self._memory_most, free)
                self._pools = self._made()
            return self._pools

    def held_bytes(self) -> int:
        """Device memory that lanes take, or did take and that is not given back yet."""
        return max(0, int(self._memory.total_bytes()) - self._other_bytes)

    def free_bytes(self) -> int:
        """Device memory that nobody has; -1 where the device does not tell."""
        with suppress(DeviceFaultError), self._device.bound():
            return self._device.free_memory()
        return -1

    def shrink(self, seen: Pools) -> bool:
        """Halve both kinds of batches, unless another thread has; whether there is something left to halve."""
        with self._lock:
            if self._is_parked or seen != self._pools:
                return True
            host, resident = self._pools[0].size, self._pools[1].size
            if host.batch // 2 < self._rule.max_size:
                return False
            self.shrunk += 1
            self._close()
            smaller = LaneSize(host.batch // 2, host.carry, host.min_size)
            smaller_resident = LaneSize(max(resident.batch // 2, host.batch), 0, resident.min_size, has_data=False)
            self._pools = self._pool(smaller), self._pool(smaller_resident)
            return True

    def trim(self, keep_bytes: int) -> None:
        """Let lanes go, and have no more from now on than fit into this; one small lane of each kind at least.

        Lanes that are lent stay until they come back.
        """
        with suppress(DeviceFaultError), self._device.bound(), self._lock:
            if keep_bytes < self._memory_max and not self._is_parked:
                self._memory_max = keep_bytes - keep_bytes // _TRIM_MARGIN
                self._close()
                self._pools = self._made()
            self._memory.free_all_blocks()

    def park(self) -> None:
        """Give all memory back, pinned memory too; lanes are made anew when they are wanted."""
        with suppress(DeviceFaultError), self._device.bound(), self._lock:
            self._is_parked = True
            self._close()
            self._device.free_pinned()

    def _close(self) -> None:
        for pool in self._pools:
            pool.close()
        self._memory.free_all_blocks()

    def _made(self) -> Pools:
        rule, batch = self._rule, self._batch_bytes
        host = LaneSize(batch, rule.max_size, rule.min_size)
        resident = LaneSize(max(_RESIDENT_BATCH_BYTES, 2 * batch), 0, rule.min_size, has_data=False)
        return self._fitting(host), self._fitting(resident)

    def _fitting(self, size: LaneSize) -> LanePool:
        """A pool with batches so small that one lane at least is within the ceiling."""
        least = self._rule.max_size if size.has_data else 2 * self._rule.max_size
        while size.device_bytes > self._share_of(size) and size.batch // 2 >= least:
            size = LaneSize(size.batch // 2, size.carry, size.min_size, size.has_data)
        return self._pool(size)

    def _pool(self, size: LaneSize) -> LanePool:
        lanes = self._lanes_max if size.has_data else _RESIDENT_LANES
        return LanePool(self._device, self._memory, size, self._share_of(size), lanes)

    def _share_of(self, size: LaneSize) -> int:
        resident = self._memory_max // _RESIDENT_SHARE
        return self._memory_max - resident if size.has_data else resident
