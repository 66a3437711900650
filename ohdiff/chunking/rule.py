"""The parameters of boundary rule g32s2/1 and the derivation of its keyed words.

The rule itself is kernels/boundary_rule.hpp. Cuts are a function of these parameters and of a file's bytes alone, so
everything here is frozen: change a constant and every file is chunked anew.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from itertools import count

from blake3 import blake3

from ohdiff.errors import UsageError

RULE_ID = "g32s2/1"
KEY_SIZE = 32
WORD_COUNT = 32
WORDS_SIZE = 4 * WORD_COUNT

AVG_SIZE_MIN = 4 << 10
AVG_SIZE_MAX = 16 << 20
MAX_SIZE_MAX = 1 << 30
# Two windows of 64 bytes: then every window that decides about a cut lies inside its chunk.
MIN_SIZE_MIN = 128

_WORDS_CONTEXT = "ohdiff 2026-11 v1 g32s2/1 words"
_MODULUS = 1 << 32
# FastCDC's normalised chunking, level 2: four times stricter before the average size, four times looser after it.
_NORMALISATION = 4


@dataclass(frozen=True, slots=True)
class ChunkingRule:
    """Rule g32s2/1 with its sizes, thresholds and keyed words.

    Parameters
    ----------
    words : 32 little-endian 32-bit words: 16 terms for the low nibble of a byte, then 16 for the high one.
    min_size : bytes; only the last chunk of a file may be smaller.
    avg_size : bytes; where the loose threshold takes over. 4 KiB to 16 MiB.
    max_size : bytes; where a chunk is cut in any case. Up to 1 GiB.
    threshold_strict : hashes below it cut a chunk that is smaller than avg_size.
    threshold_loose : hashes below it cut a chunk of at least avg_size.

    Raises
    ------
    UsageError
        Sizes or thresholds are out of bounds, or the words make a run of one byte a candidate.
    """

    words: bytes = field(repr=False)
    min_size: int
    avg_size: int
    max_size: int
    threshold_strict: int
    threshold_loose: int
    rule_id: str = RULE_ID

    def __post_init__(self) -> None:
        if self.rule_id != RULE_ID:
            raise UsageError(f"unknown boundary rule {self.rule_id}", hint=f"this version knows {RULE_ID}")
        _check_sizes(self.min_size, self.avg_size, self.max_size)
        if not 0 < self.threshold_strict <= self.threshold_loose < _MODULUS:
            raise UsageError("chunking thresholds must be 0 < strict <= loose < 2^32")
        if len(self.words) != WORDS_SIZE or lowest_run_hash(self.words) < self.threshold_loose:
            raise UsageError("chunking words must be 128 bytes under which no run of one byte is a candidate")

    @classmethod
    def from_key(
        cls,
        key: bytes,
        *,
        avg_size: int,
        min_size: int | None = None,
        max_size: int | None = None,
        threshold_strict: int | None = None,
        threshold_loose: int | None = None,
    ) -> ChunkingRule:
        """The rule under a 32-byte chunker key.

        What is None follows from avg_size: a quarter of it, four times it, and the thresholds of `thresholds`.
        A repository stores all five numbers, so that later defaults do not touch it.
        """
        strict, loose = thresholds(avg_size)
        return cls(
            words=derive_words(key),
            min_size=avg_size // 4 if min_size is None else min_size,
            avg_size=avg_size,
            max_size=avg_size * 4 if max_size is None else max_size,
            threshold_strict=strict if threshold_strict is None else threshold_strict,
            threshold_loose=loose if threshold_loose is None else threshold_loose,
        )


def thresholds(avg_size: int) -> tuple[int, int]:
    """(strict, loose) for an average size: 2^32 / avg_size, divided and multiplied by four.

    Raises
    ------
    UsageError
        The average size is below 4 KiB or above 16 MiB.
    """
    _check_avg_size(avg_size)
    strict = _MODULUS // (avg_size * _NORMALISATION)
    loose = min(_MODULUS * _NORMALISATION // avg_size, _MODULUS - 1)
    return strict, loose


def derive_words(key: bytes) -> bytes:
    """The 128 bytes of keyed words under a 32-byte chunker key.

    BLAKE3 in its key derivation mode, over the key and a counter (32 bits, little-endian) that rises until no run of
    one byte can be a candidate under the loosest threshold that is allowed: about one draw in five is rejected.
    """
    if len(key) != KEY_SIZE:
        raise UsageError("a chunker key has 32 bytes")
    loosest = thresholds(AVG_SIZE_MIN)[1]
    draws = (_draw_words(key, counter) for counter in count())
    return next(words for words in draws if lowest_run_hash(words) >= loosest)


def _draw_words(key: bytes, counter: int) -> bytes:
    return blake3(key + struct.pack("<I", counter), derive_key_context=_WORDS_CONTEXT).digest(length=WORDS_SIZE)


def lowest_run_hash(words: bytes) -> int:
    """The smallest hash that a run of one repeated byte can have under these words."""
    values: tuple[int, ...] = struct.unpack(f"<{WORD_COUNT}I", words)
    terms = [low ^ high for low in values[:16] for high in values[16:]]
    return min(-(term + _rotated_by_16(term)) % _MODULUS for term in terms)


def _rotated_by_16(value: int) -> int:
    return (value << 16 | value >> 16) % _MODULUS


def _check_avg_size(avg_size: int) -> None:
    if not AVG_SIZE_MIN <= avg_size <= AVG_SIZE_MAX:
        raise UsageError(f"average chunk size {avg_size} is not between 4 KiB and 16 MiB")


def _check_sizes(min_size: int, avg_size: int, max_size: int) -> None:
    _check_avg_size(avg_size)
    if not MIN_SIZE_MIN <= min_size < avg_size < max_size <= MAX_SIZE_MAX:
        raise UsageError(
            f"chunk sizes {min_size}, {avg_size}, {max_size} are out of bounds",
            hint="they must be 128 bytes <= minimum < average < maximum <= 1 GiB",
        )
