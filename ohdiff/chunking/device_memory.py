"""A run of bytes in a device's memory that somebody else owns: a value, which knows nothing of any driver."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class DeviceMemory:
    """Bytes that lie on a device.

    Parameters
    ----------
    pointer : device address of the first byte.
    size : bytes.
    device_id : the device's number, None where only the driver knows it.
    owner : whatever keeps the memory from being freed.
    """

    pointer: int
    size: int
    device_id: int | None
    owner: object

    def part(self, start: int, end: int) -> DeviceMemory:
        """The bytes from `start` to `end`, exclusive."""
        return DeviceMemory(self.pointer + start, end - start, self.device_id, self.owner)
