"""The thread that seals and writes encoded blocks in the order in which they were put."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future

from ohdiff_format.pack import BlockRecord

from .encoding import Encoded
from .open_block import OpenBlock
from .packs import PackSet


class Packer:
    """Takes blocks whose encoding may still run; what fails is raised by the caller's next call.

    Parameters
    ----------
    size_bytes_max : plain bytes of the blocks that are in flight at most, or one block.
    """

    def __init__(self, packs: PackSet, size_bytes_max: int) -> None:
        self.packs = packs
        self._size_bytes_max = size_bytes_max
        self._size_bytes = 0
        self._has_room = threading.Condition()
        self._queue: queue.SimpleQueue[tuple[OpenBlock, Future[Encoded]] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._is_aborted = False
        self._thread = threading.Thread(target=self._run, name="packer", daemon=True)
        self._thread.start()

    def put(self, block: OpenBlock, future: Future[Encoded]) -> None:
        """Hand over a block; waits while too much is in flight."""
        self._raise_error()
        with self._has_room:
            self._has_room.wait_for(
                lambda: not self._size_bytes or self._size_bytes + block.size <= self._size_bytes_max
            )
            self._size_bytes += block.size
        self._queue.put((block, future))

    def finish(self) -> None:
        """Wait until everything is written and closed."""
        self._stop()
        self._raise_error()
        self.packs.finish()

    def abort(self) -> None:
        """Drop what is not written yet."""
        self._is_aborted = True
        self._stop()
        self.packs.abort()

    def _fits(self, size: int) -> bool:
        return self._size_bytes == 0 or self._size_bytes + size <= self._size_bytes_max

    def _stop(self) -> None:
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            block, future = item
            if self._error is not None or self._is_aborted:
                future.cancel()
            else:
                self._write(block, future)
            with self._has_room:
                self._size_bytes -= block.size
                self._has_room.notify()

    def _write(self, block: OpenBlock, future: Future[Encoded]) -> None:
        try:
            encoded = future.result()
            prefixes = b"".join(block.prefixes)
            record = BlockRecord(0, encoded.codec, block.sizes, prefixes, encoded.base_prefixes, encoded.parameters)
            self.packs.append(record, encoded.payload, block.is_metadata)
        except BaseException as error:  # noqa: BLE001 - carried to the caller's thread, which raises it
            self._error = error
