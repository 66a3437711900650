"""Compute kernels (kernels/*.hpp): the chunker of rule g32s2/1, the sorted id table, the resemblance table, numbers."""

import os
from collections.abc import Sequence

from typing_extensions import Buffer

def are_equal(one: Buffer, other: Buffer) -> bool:
    """Whether two contiguous buffers hold the same bytes; the interpreter's lock is released meanwhile."""

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

def available_numbers_kernels() -> list[str]:
    """Names of the number kernels that this CPU can run, best first; the last is "scalar"."""

def split_numbers(
    data: Buffer, width: int, transform: int, base: Buffer | None = None, cast: int = 0, kernel: str = ""
) -> bytes:
    """
    Byte planes of little-endian elements, after a transform (SPEC section 6.5).

    Buffers are contiguous host memory of any alignment, read in place while the interpreter's lock is released, and
    not kept.

    Parameters
    ----------
    data : bytes-like
        Whole elements, at most 1 GiB.
    width : int
        Bytes of an element: 1, 2, 4 or 8.
    transform : int
        0 none, 1 XOR with the base, 2 difference of floats, 3 difference of integers, 4 difference of floats, grouped
        by the magnitude of the base.
    base : bytes-like, optional
        As many elements as in `data`; given with every transform but 0.
    cast : int
        0 none; 1 or 2: the base is f32, and is rounded to bf16 or f16 first, to nearest, ties to even. Width 2 only.
    kernel : str
        One of `available_numbers_kernels()`, or "" for the best; all give the same bytes.

    Returns
    -------
    bytes
        `width` planes back to back: byte 0 of every element, then byte 1 of every element, and so on.

    Raises
    ------
    ValueError
        Sizes or codes are out of bounds, or the kernel is unknown or cannot run on this CPU.
    """

def split_numbers_into(
    data: Buffer,
    target: bytearray | memoryview,
    width: int,
    transform: int,
    base: Buffer | None = None,
    cast: int = 0,
    kernel: str = "",
) -> None:
    """
    `split_numbers` into memory of the caller, exactly as large as the data.

    ValueError also when it has another size, or overlaps the data or the base.
    """

def join_numbers(
    planes: Buffer, width: int, transform: int, base: Buffer | None = None, cast: int = 0, kernel: str = ""
) -> bytes:
    """The elements that `split_numbers` made planes of, given the same other arguments."""

def join_numbers_into(
    planes: Buffer,
    target: bytearray | memoryview,
    width: int,
    transform: int,
    base: Buffer | None = None,
    cast: int = 0,
    kernel: str = "",
) -> None:
    """
    `join_numbers` into memory of the caller, exactly as large as the planes.

    ValueError also when it has another size, or overlaps the planes or the base.
    """

def count_changes(before: Buffer, after: Buffer, kind: str) -> tuple[int, int, float, float]:
    """
    How far two arrays of numbers lie apart (kernels/tensor_change.hpp).

    Parameters
    ----------
    before, after : bytes-like
        Whole little-endian elements, as many on both sides; contiguous host memory of any alignment, read in place
        while the interpreter's lock is released, and not kept.
    kind : str
        "f64", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "f8_e4m3fnuz", "f8_e5m2fnuz", "f8_e8m0", and integers of
        either sign: "i64", "i32", "i16", "i8".

    Returns
    -------
    changed : int
        Elements whose bytes differ.
    not_finite : int
        Elements that are an infinity or a NaN on either side; they are in no sum. 0 for integers.
    difference_square_sum, old_square_sum : float
        Sums over the others of (after - before)^2 and of before^2, in float64; 0 for integers.

    Raises
    ------
    ValueError
        Sizes differ or are no multiple of the element's, or the kind is unknown.
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

class ResemblanceTable:
    """Which earlier chunk shares most features with a new one; kept in a file, or in memory.

    Holds the latest chunks up to a bound, each with 12 features and the first 16 bytes of its id. Any number of threads
    may use it; they take turns. What it answers is a hint: the chunk may be gone, or may not be worth a difference.

    Parameters
    ----------
    path : None keeps everything in memory. A file that is missing, damaged, of another version or under another tag is
        begun anew, by a new file in its place. Of one that is larger than the bound, the newest chunks are kept.
    chunk_count_max : 128 to 2^24, rounded down to a power of two: how far the table grows, by doubling, at 96 bytes a
        chunk.
    tag : 32 bytes that name what features and prefixes mean: the repository, and the keyed words of the rule.
    is_writable : False: what is added is seen here and never written. One process may write a file at a time, which the
        caller sees to; others may read it meanwhile.

    Raises
    ------
    OSError
        The file is there and cannot be opened.
    ValueError
        A size is out of bounds.
    """

    def __init__(
        self,
        path: str | bytes | os.PathLike[str] | None,
        chunk_count_max: int,
        tag: bytes,
        is_writable: bool = True,
    ) -> None: ...
    def add(self, features: Buffer, prefixes: Buffer) -> None:
        """Remember chunks: uint32[chunks * 12] and uint8[chunks * 16]. Those whose features are all 0 are left out."""

    def find(self, features: Buffer, equal_min: int = 2) -> tuple[bytes, bytes]:
        """The chunk that shares most features with each of these, the newest of several.

        Parameters
        ----------
        features : uint32[chunks * 12]; chunks whose features are all 0 resemble nothing.
        equal_min : 1 to 12: fewer equal features are no resemblance.

        Returns
        -------
        prefixes : uint8[chunks * 16], zeros where nothing resembles the chunk.
        equal_counts : uint8[chunks], how many features are equal; 0 where nothing resembles the chunk.
        """

    def flush(self) -> None:
        """Write what is new to the file, without waiting for the disk; OSError when that fails."""

    def close(self) -> None:
        """Release the file and the memory; what was not flushed is lost. Closing twice is harmless."""

    @property
    def chunk_count(self) -> int:
        """Chunks that can be found."""

    @property
    def capacity(self) -> int:
        """Chunks that the table holds before it grows, or forgets the oldest."""

    @property
    def resident_bytes(self) -> int:
        """Memory for the table; pages of a file count once they were read."""

def encode_delta(plain: Buffer, base: Buffer, size_max: int) -> bytes | None:
    """A zstd frame of bytes that are nearly those of their base, which a decoder needs as prefix.

    Several times as fast as a compressor that looks for everything: bytes that the base does not have stay as they are.
    The same inputs give the same frame.

    Parameters
    ----------
    plain, base : bytes-like
        At most 128 MiB each; contiguous host memory, read in place while the interpreter's lock is released, and not
        kept.
    size_max : int
        The largest frame of use.

    Returns
    -------
    bytes or None
        None if the frame would be larger.

    Raises
    ------
    ValueError
        An input is too large.
    """
