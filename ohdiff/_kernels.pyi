"""Compute kernels: the chunker of rule g32s2/1 (kernels/scan.hpp) and the sorted id table (kernels/id_table.hpp)."""

import os
from collections.abc import Sequence

from typing_extensions import Buffer

def available_kernels() -> list[str]:
    """Names of the kernels that this CPU can run, best first; the last is "scalar"."""

class Chunker:
    """Rule g32s2/1 on the CPU by one kernel; immutable, and safe between threads.

    Buffers are contiguous host memory, read in place while the interpreter's lock is released, and not kept. Offsets
    go in as a buffer of uint64 or as integers; all results are new little-endian bytes.

    Parameters
    ----------
    words : 128 bytes, 32 little-endian words: 16 for the low nibble of a byte, then 16 for the high one.
    min_size, avg_size, max_size : bytes, 128 <= min < avg < max <= 1 GiB.
    threshold_strict, threshold_loose : 0 < strict <= loose < 2^32.
    kernel : one of `available_kernels()`.

    Raises
    ------
    ValueError
        A parameter is out of bounds, a run of one byte would be a candidate under these words, or the kernel is
        unknown or cannot run on this CPU.
    """

    def __init__(
        self,
        words: bytes,
        min_size: int,
        avg_size: int,
        max_size: int,
        threshold_strict: int,
        threshold_loose: int,
        kernel: str,
    ) -> None: ...
    @property
    def kernel(self) -> str: ...
    @property
    def min_size(self) -> int: ...
    @property
    def avg_size(self) -> int: ...
    @property
    def max_size(self) -> int: ...
    @property
    def threshold_strict(self) -> int: ...
    @property
    def threshold_loose(self) -> int: ...
    def cut_segments(self, data: Buffer, segment_ends: Buffer | Sequence[int]) -> tuple[bytes, bytes]:
        """Cut many whole files that lie back to back: uint64[chunks] ends in `data`, uint32[files] chunks of each.

        ValueError when ends do not ascend or lie beyond the data.
        """

    def cut_stream(self, data: Buffer, is_last: bool) -> bytes:
        """Final cuts, uint64[chunks], of data that begins at a chunk start; the rest is to be handed in again."""

    def candidates(self, data: Buffer) -> tuple[bytes, bytes]:
        """Every candidate of `data` as one file: uint64[candidates] positions, uint32[candidates] hashes."""

    def features(self, data: Buffer, cuts: Buffer | Sequence[int]) -> bytes:
        """uint32[chunks * 12] resemblance features of the chunks that end at `cuts`.

        ValueError when cuts do not ascend or lie beyond the data.
        """

def write_id_table(
    path: str | bytes | os.PathLike[str],
    keys: bytes | bytearray | memoryview,
    values: bytes | bytearray | memoryview,
    key_size: int,
    value_size: int,
    tag: bytes,
) -> int:
    """
    Write rows to a new table file, sorted by key, and fsync it.

    Parameters
    ----------
    path : str, bytes or os.PathLike
        Written in place: pass a temporary name and rename it when this returns. A table that is open elsewhere must not
        be overwritten. After an exception the incomplete file stays; opening it is refused.
    keys : bytes-like
        ``n * key_size`` bytes, in any order, uniformly distributed (others are correct, but slow). Not to be changed
        during the call. The first of equal keys is kept.
    values : bytes-like
        ``n * value_size`` bytes.
    key_size : int
        16 or 32.
    value_size : int
        A multiple of 4 from 4 to 256.
    tag : bytes
        32 bytes for the caller's own use, kept in the header.

    Returns
    -------
    int
        The number of rows in the table, at most 4294967295.

    Raises
    ------
    OSError
        With errno and filename, from the file system.
    ValueError
        The sizes do not fit together.
    """

def merge_id_tables(
    inputs: Sequence[str | bytes | os.PathLike[str]],
    output: str | bytes | os.PathLike[str],
    first_word_bias: Sequence[int],
    tag: bytes,
) -> int:
    """
    Merge tables into one, with bounded memory, and fsync it.

    Parameters
    ----------
    inputs : list of str, bytes or os.PathLike
        Tables with the same key and value size; at least one.
    output : str, bytes or os.PathLike
        As `path` of `write_id_table`; none of the inputs.
    first_word_bias : list of int
        For each input, what is added to the little-endian 32-bit word at the start of each of its values.
    tag : bytes
        32 bytes for the caller's own use; the tags of the inputs are not looked at.

    Returns
    -------
    int
        The number of rows. Of equal keys the row of the earliest input is kept.

    Raises
    ------
    OSError
        With errno and filename, from the file system.
    ValueError
        An input is damaged or no table, shapes differ, or a biased word does not fit 32 bits: the output is incomplete.
    """

class IdTable:
    """
    A table file opened for look-ups; any number of threads may use it at once.

    The filter and the directory are read into memory and checked; rows are read from the file when asked for and are
    not checksummed, so the caller verifies what a row leads to by its id.

    Parameters
    ----------
    path : str, bytes or os.PathLike

    Raises
    ------
    OSError
        With errno and filename, from the file system.
    ValueError
        The file is damaged or no table of this version: remove it and build it again.
    """

    def __init__(self, path: str | bytes | os.PathLike[str]) -> None: ...
    def find(self, keys: bytes | bytearray | memoryview) -> tuple[bytes, bytes]:
        """
        Look up many keys at once: the more in one call, the more neighbours are read together.

        Parameters
        ----------
        keys : bytes-like
            ``n * key_size`` bytes, in any order, repeats allowed.

        Returns
        -------
        found : bytes
            ``n`` bytes, 1 where the key is in the table and 0 elsewhere.
        values : bytes
            ``n * value_size`` bytes, zeros where the key is absent.

        Raises
        ------
        OSError
            With errno and filename, from the file system.
        ValueError
            The table is closed, the file was cut short since it was opened, or `keys` is no multiple of ``key_size``.
        """

    def iterate(self, start: int, count: int) -> tuple[bytes, bytes]:
        """
        The keys and values of rows ``[start, start + count)`` in key order.

        Rows past the last one are left out, as in a slice.

        Returns
        -------
        keys, values : bytes
            ``key_size`` and ``value_size`` bytes a row.
        """

    def close(self) -> None:
        """
        Release the file and the memory, once running look-ups are done. Closing twice is harmless.
        """

    @property
    def count(self) -> int:
        """Number of rows."""

    @property
    def key_size(self) -> int:
        """Bytes in a key."""

    @property
    def value_size(self) -> int:
        """Bytes in a value."""

    @property
    def tag(self) -> bytes:
        """The writer's 32 bytes."""

    @property
    def resident_bytes(self) -> int:
        """Bytes of filter and directory held in memory."""

    @property
    def filter_pass_count(self) -> int:
        """
        Keys the filter has let through since opening: those found and its false positives.
        """
