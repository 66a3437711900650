"""A block that is being filled holds on to no buffer that it has little of, and gives its chunks back in order."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ohdiff.buffers import BufferPool, PooledBuffer
from ohdiff.repository.open_block import OpenBlock

SIZE = 1000


def filled(pool: BufferPool, seed: int) -> PooledBuffer:
    buffer = pool.take(SIZE)
    buffer.data[:] = bytes((seed * 31 + at * 7) % 251 for at in range(SIZE))
    return buffer


def gathered(block: OpenBlock) -> bytes:
    with block.gather(bytearray()) as plain:
        return bytes(plain)


def test_a_block_of_few_chunks_out_of_many_buffers_retains_none() -> None:
    pool, block, expected = BufferPool(SIZE, 100), OpenBlock(), b""
    buffers = [filled(pool, number) for number in range(50)]
    for buffer in buffers:
        block.take(buffer, 10, 40)
        block.take(buffer, 700, 720)
        expected += buffer.data[10:40] + buffer.data[700:720]
        buffer.release()
        block.detach(buffer)
        assert buffer.users == 0
        buffer.data[:] = bytes(SIZE)
    assert block.size == len(expected) == 50 * 50
    # The views that are left keep nothing of the buffers alive.
    assert sum(len(part.obj) for part in block.parts) == len(expected)
    assert gathered(block) == expected


def test_a_buffer_that_most_was_taken_of_is_retained_and_not_copied() -> None:
    pool, block = BufferPool(SIZE, 100), OpenBlock()
    buffer = filled(pool, 1)
    block.take(buffer, 0, 600)
    buffer.release()
    block.detach(buffer)
    assert buffer.users == 1
    assert block.parts[0].obj is buffer.data
    block.release()
    assert buffer.users == 0
    assert block.parts == []


def test_what_was_taken_of_a_buffer_is_copied_out_when_that_is_asked() -> None:
    pool, block = BufferPool(SIZE, 100), OpenBlock()
    buffer, other = filled(pool, 1), filled(pool, 2)
    block.take(buffer, 0, 400)
    block.take(buffer, 500, 900)
    expected = bytes(buffer.data[:400] + buffer.data[500:900])
    buffer.release()
    block.copy_out(other)
    assert buffer.users == 1
    block.copy_out(buffer)
    assert buffer.users == 0
    buffer.data[:] = bytes(SIZE)
    block.take(other, 5, 9)
    assert gathered(block) == expected + bytes(other.data[5:9])


def test_a_buffer_that_others_were_taken_before_is_let_go_alone() -> None:
    pool, block = BufferPool(SIZE, 100), OpenBlock()
    large, small = filled(pool, 1), filled(pool, 2)
    expected = bytes(large.data) + bytes(small.data[5:9])
    block.take(large, 0, SIZE)
    block.detach(large)
    block.take(small, 5, 9)
    block.detach(small)
    assert (large.users, small.users) == (2, 1)
    assert gathered(block) == expected


def test_a_buffer_that_nothing_was_taken_of_is_left_alone() -> None:
    pool, block = BufferPool(SIZE, 100), OpenBlock()
    taken, other = filled(pool, 1), filled(pool, 2)
    block.take(taken, 0, 10)
    block.take(other, 5, 5)
    block.detach(other)
    assert (taken.users, other.users) == (2, 1)
    block.detach(taken)
    assert taken.users == 1


Part = tuple[bool, list[tuple[int, int]]]


@given(
    buffers=st.lists(
        st.tuples(st.booleans(), st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)), max_size=4)),
        max_size=8,
    ),
)
def test_whatever_is_taken_and_detached_comes_back_in_order(buffers: Sequence[Part]) -> None:
    pool, block, expected = BufferPool(SIZE, 1), OpenBlock(), b""
    for number, (is_detached, bounds) in enumerate(buffers):
        buffer = filled(pool, number)
        at = 0
        for skipped, size in bounds:
            start = min(SIZE, at + skipped)
            at = min(SIZE, start + size)
            block.take(buffer, start, at)
            expected += buffer.data[start:at]
        buffer.release()
        if is_detached:
            block.detach(buffer)
    assert block.size == len(expected)
    assert gathered(block) == expected
    block.release()
