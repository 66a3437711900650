"""Rule g32s2/1 once more, from its description and as slowly as it reads: what every engine is compared with.

Shares no code with the product; a rule is taken as the six values it consists of.
"""

from __future__ import annotations

import struct
from typing import Protocol

from blake3 import blake3

WINDOW = 64
MODULUS = 1 << 32
SAMPLE_MASK = 0x01FC0000
FEATURES = 12


class RuleValues(Protocol):
    """The values of a rule."""

    @property
    def words(self) -> bytes: ...
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


def rotated(value: int) -> int:
    return (value << 16 | value >> 16) % MODULUS


def byte_terms(words: bytes) -> list[int]:
    """T[b] for every byte b."""
    values = struct.unpack("<32I", words)
    return [values[byte % 16] ^ values[16 + byte // 16] for byte in range(256)]


def window_hash(window: bytes, words: bytes) -> int:
    """G of exactly 64 bytes, as the sum that the recurrence stands for."""
    assert len(window) == WINDOW
    terms = [byte_terms(words)[byte] for byte in reversed(window)]
    pairs = zip(terms[0::2], terms[1::2], strict=True)
    return sum((term + rotated(before)) << age for age, (term, before) in enumerate(pairs)) % MODULUS


def hashes(data: bytes, words: bytes) -> list[int]:
    """G(i) = 2 G(i-2) + T[b(i)] + rotl16(T[b(i-1)]) for every i; the first 63 lack bytes and mean nothing."""
    terms = byte_terms(words)
    turned = [rotated(term) for term in terms]
    result = []
    one_back = two_back = last_turned = 0
    for byte in data:
        one_back, two_back = (2 * two_back + terms[byte] + last_turned) % MODULUS, one_back
        last_turned = turned[byte]
        result.append(one_back)
    return result


def candidates_of(found: list[int], rule: RuleValues) -> tuple[list[int], list[int]]:
    """(positions, hashes) below the loose threshold, given all hashes of a file."""
    positions = [at for at in range(WINDOW - 1, len(found)) if found[at] < rule.threshold_loose]
    return positions, [found[at] for at in positions]


def cuts_of(found: list[int], rule: RuleValues) -> list[int]:
    """Exclusive chunk ends, given all hashes of a file."""
    cuts = []
    start = 0
    while start < len(found):
        start = _chunk_end(found, rule, start)
        cuts.append(start)
    return cuts


def _chunk_end(found: list[int], rule: RuleValues, start: int) -> int:
    hard_end = min(start + rule.max_size, len(found))
    for end in range(start + rule.min_size, hard_end):
        threshold = rule.threshold_strict if end - start < rule.avg_size else rule.threshold_loose
        if end >= WINDOW and found[end - 1] < threshold:
            return end
    return hard_end


def features_of(chunk: bytes, words: bytes) -> list[int]:
    """Twelve maxima over the sampled hashes of one chunk; see kernels/boundary_rule.hpp for the constants."""
    maxima = [0] * FEATURES
    for found in hashes(chunk, words)[WINDOW - 1 :]:
        if found & SAMPLE_MASK:
            continue
        value = (found ^ found >> 15) * 0x2C1B3C6D % MODULUS
        value ^= value >> 12
        for feature in range(FEATURES):
            factor = 0x9E3779B1 * (2 * feature + 1) | 1
            mapped = (value * factor + 0x7F4A7C15 * (feature + 1)) % MODULUS
            maxima[feature] = max(maxima[feature], mapped)
    return maxima


def random_bytes(label: str, size: int) -> bytes:
    """Reproducible noise: the BLAKE3 output stream of a label."""
    return blake3(label.encode()).digest(length=size)


def text_like(label: str, size: int) -> bytes:
    """Lines of few symbols, as in source code."""
    symbols = b"etaoin shrdlu(){};=.,_*/<>\n\n    "
    return bytes(symbols[byte % len(symbols)] for byte in random_bytes(label, size))


def periodic(pattern: bytes, size: int) -> bytes:
    return (pattern * (size // len(pattern) + 1))[:size]


def flooding_pattern(period: int, words: bytes, threshold: int) -> bytes:
    """A pattern whose repetition has a candidate in every period: one byte in `period` is below `threshold`."""
    for number in range(1 << 20):
        pattern = random_bytes(f"flood {period} {number}", period)
        steady = hashes(periodic(pattern, WINDOW + 2 * period), words)[-period:]
        if min(steady) < threshold:
            return pattern
    raise AssertionError("no pattern floods")
