"""Large buffers that are used again: fresh ones cost a page fault for every 4 KiB, a third of the time to read them."""

from __future__ import annotations

import threading


def trimmed(data: bytes) -> bytes:
    """A copy that takes no more memory than its length: what zstandard gives keeps room for the worst case."""
    return bytes(memoryview(data))


class PooledBuffer:
    """A buffer with a count of its users; it goes back to its pool when the last one releases it.

    Attributes
    ----------
    data : host memory, at least as large as was asked for; its content is what earlier users left.
    """

    __slots__ = ("_pool", "_users", "data")

    def __init__(self, pool: BufferPool, data: bytearray) -> None:
        self._pool = pool
        self._users = 1
        self.data = data

    def view(self, start: int, end: int) -> memoryview:
        """A range of the data, to be looked at or kept for as long as there are users."""
        return memoryview(self.data)[start:end]

    def retain(self) -> None:
        """One more user."""
        with self._pool.lock:
            self._users += 1

    @property
    def users(self) -> int:
        """How many there are."""
        return self._users

    def release(self) -> None:
        """One user less; who releases must hold no view of the data any more."""
        with self._pool.lock:
            self._users -= 1
            if self._users == 0:
                self._pool.put_back(self.data)


class BufferPool:
    """Hands out buffers of at least `size` bytes; keeps at most `kept` that nobody uses."""

    def __init__(self, size: int, kept: int) -> None:
        self._size = size
        self._kept = kept
        self._free: list[bytearray] = []
        self.lock = threading.Lock()

    def take(self, size: int) -> PooledBuffer:
        """A buffer of at least `size` bytes for one user."""
        with self.lock:
            if size <= self._size and self._free:
                return PooledBuffer(self, self._free.pop())
        return PooledBuffer(self, bytearray(max(size, self._size)))

    def put_back(self, data: bytearray) -> None:
        """Keep a buffer that nobody uses; the caller holds the lock."""
        if len(data) == self._size and len(self._free) < self._kept:
            self._free.append(data)
