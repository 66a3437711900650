"""Comparing plain memory."""

import pytest

from ohdiff._kernels import are_equal


class TestAreEqual:
    @pytest.mark.parametrize("size", [1, 15, 4096, (1 << 20) + 3])
    def test_one_flipped_bit_anywhere_is_seen(self, size: int) -> None:
        one = bytes(range(256)) * (size // 256 + 1)
        for place in {0, size // 2, size - 1}:
            other = bytearray(one[:size])
            assert are_equal(one[:size], other)
            other[place] ^= 0x10
            assert not are_equal(one[:size], other)

    def test_buffers_of_other_lengths_differ(self) -> None:
        assert not are_equal(b"abc", b"abcd")
        assert not are_equal(b"", b"a")

    def test_kinds_of_buffers_do_not_matter(self) -> None:
        assert are_equal(b"", bytearray())
        assert are_equal(memoryview(b"xabcx")[1:4], bytearray(b"abc"))

    def test_what_is_no_contiguous_buffer_is_refused(self) -> None:
        with pytest.raises(TypeError):
            are_equal(b"a", "a")  # type: ignore[arg-type]
        with pytest.raises(BufferError):
            are_equal(memoryview(b"abcd")[::2], b"ac")
