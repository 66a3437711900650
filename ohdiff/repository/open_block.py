"""A block that is being filled: parts of buffers, and what is to be known of its chunks."""

from __future__ import annotations

from dataclasses import dataclass, field

from ohdiff.buffers import PooledBuffer

from .encoding import DistantPlan, EncodingPlan


@dataclass(slots=True)
class OpenBlock:
    """Chunks gathered for one block; the buffers that they lie in are retained until `release`.

    Attributes
    ----------
    plan : how to encode the block if not as plain bytes; it gives way to them when it does not pay.
    distant : how to encode it where its bytes lie; only if that fails are they asked for.
    """

    is_metadata: bool = False
    plan: EncodingPlan | None = None
    distant: DistantPlan | None = None
    parts: list[memoryview] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    prefixes: list[bytes] = field(default_factory=list)
    size: int = 0
    _buffers: list[PooledBuffer] = field(default_factory=list)
    # Of the parts in the last buffer: how many, their bytes, and the range of the last one.
    _last_parts: int = 0
    _last_size: int = 0
    _last_start: int = 0
    _last_end: int = 0

    def take(self, buffer: PooledBuffer, start: int, end: int) -> None:
        """Append a range of a buffer."""
        if end <= start:
            return
        if not self._buffers or self._buffers[-1] is not buffer:
            buffer.retain()
            self._buffers.append(buffer)
            self._last_parts = self._last_size = 0
        if self._last_parts and self._last_end == start:
            self.parts.pop()
            start_of_part = self._last_start
        else:
            self._last_parts += 1
            start_of_part = start
        self.parts.append(buffer.view(start_of_part, end))
        self._last_start, self._last_end = start_of_part, end
        self._last_size += end - start
        self.size += end - start

    def add(self, buffer: PooledBuffer, prefix: bytes, start: int, end: int) -> None:
        """Append a chunk that is a range of a buffer."""
        self.take(buffer, start, end)
        self.sizes.append(end - start)
        self.prefixes.append(prefix)

    def add_later(self, buffer: PooledBuffer, prefix: bytes, size: int) -> None:
        """The only chunk, which is all of a buffer, and is not asked for before the block is gathered."""
        buffer.retain()
        self._buffers.append(buffer)
        self.sizes.append(size)
        self.prefixes.append(prefix)
        self.size = size

    def append(self, data: memoryview, prefix: bytes) -> None:
        """Append a chunk that lies in memory of its own."""
        self.parts.append(data)
        self.sizes.append(len(data))
        self.prefixes.append(prefix)
        self.size += len(data)

    def size_in(self, buffer: PooledBuffer) -> int:
        """How many bytes of the block lie in the buffer that is being added from."""
        return self._last_size if self._buffers and self._buffers[-1] is buffer else 0

    def detach(self, buffer: PooledBuffer) -> None:
        """No more will come from this buffer: if little of it was taken, copy that and let the buffer go.

        So a block of few new chunks out of each of many buffers does not hold on to all of them.
        """
        size = self.size_in(buffer)
        if size and 2 * size < len(buffer.data):
            self.copy_out(buffer)

    def copy_out(self, buffer: PooledBuffer) -> None:
        """Copy what was taken from this buffer, if it is the last one, and let it go."""
        if not self.size_in(buffer):
            return
        tail = self.parts[-self._last_parts :]
        self.parts[-self._last_parts :] = [memoryview(b"".join(tail))]
        del tail
        self._buffers.pop().release()
        self._last_parts = self._last_size = 0

    def gather(self, room: bytearray) -> memoryview:
        """The parts back to back: moved together where they lie if nobody else uses their buffer, else copied.

        Parameters
        ----------
        room : where to copy them to; grown as needed.
        """
        if not self.parts and self.distant is not None:
            self.parts.append(self._buffers[0].view(0, self.size))
        if len(self.parts) == 1:
            return self.parts[0]
        target = self._sole_buffer()
        if target is None:
            if len(room) < self.size:
                room.extend(bytes(self.size - len(room)))
            target = room
        plain = memoryview(target)[: self.size]
        start = 0
        for part in self.parts:
            plain[start : start + len(part)] = part
            start += len(part)
        return plain

    def release(self) -> None:
        """Let the buffers go; the sizes and prefixes of the chunks stay."""
        self.parts.clear()
        for buffer in self._buffers:
            buffer.release()
        self._buffers.clear()

    def _sole_buffer(self) -> bytearray | None:
        """The buffer that all parts lie in, in ascending order, if nobody but this block uses it."""
        if len(self._buffers) == 1 and self._last_parts == len(self.parts) and self._buffers[0].users == 1:
            return self._buffers[0].data
        return None
