"""The rule's parameters: what follows from an average size, what is refused, and words that rule out one-byte runs."""

from __future__ import annotations

import struct
from dataclasses import FrozenInstanceError, replace

import pytest
from blake3 import blake3

from ohdiff.chunking.rule import ChunkingRule, derive_words, lowest_run_hash, thresholds
from ohdiff.errors import UsageError

KEY = bytes(range(32))
RULE = ChunkingRule.from_key(KEY, avg_size=65536)


def test_sizes_and_thresholds_follow_from_the_average() -> None:
    assert (RULE.min_size, RULE.avg_size, RULE.max_size) == (16384, 65536, 262144)
    assert (RULE.threshold_strict, RULE.threshold_loose) == (2**32 // 65536 // 4, 2**32 // 65536 * 4)


@pytest.mark.parametrize("avg_size", [4096, 5000, 65536, 1 << 20, 16 << 20])
def test_thresholds_are_the_floor_of_the_exact_quotient(avg_size: int) -> None:
    strict, loose = thresholds(avg_size)
    assert strict * avg_size * 4 <= 2**32 < (strict + 1) * avg_size * 4
    assert loose * avg_size <= 2**34 < (loose + 1) * avg_size


def test_stored_numbers_win_over_what_would_follow() -> None:
    stored = ChunkingRule.from_key(
        KEY, avg_size=65536, min_size=1000, max_size=70000, threshold_strict=5, threshold_loose=6
    )
    assert (stored.min_size, stored.max_size, stored.threshold_strict, stored.threshold_loose) == (1000, 70000, 5, 6)


def test_words_depend_on_every_bit_of_the_key_and_on_nothing_else() -> None:
    flipped = [bytes([*KEY[:at], KEY[at] ^ 1, *KEY[at + 1 :]]) for at in (0, 15, 31)]
    assert len({derive_words(key) for key in (KEY, *flipped)}) == 4
    assert derive_words(KEY) == derive_words(bytearray(KEY)) == RULE.words
    assert len(RULE.words) == 128


def test_no_run_of_one_byte_is_a_candidate_under_any_key() -> None:
    for number in range(50):
        words = derive_words(struct.pack("<8I", number, *range(7)))
        values = struct.unpack("<32I", words)
        for byte in range(256):
            term = values[byte & 15] ^ values[16 + (byte >> 4)]
            run_hash = (0 - term - ((term << 16 | term >> 16) & 0xFFFFFFFF)) & 0xFFFFFFFF
            assert run_hash >= 1 << 22


def test_some_keys_need_another_draw() -> None:
    """Else the redraw is never run, and neither tested nor frozen."""
    keys = [struct.pack("<8I", number, *range(7)) for number in range(50)]
    first_draws = {_first_draw(key) for key in keys}
    assert 25 < len(first_draws & {derive_words(key) for key in keys}) < 50


def _first_draw(key: bytes) -> bytes:
    return blake3(key + bytes(4), derive_key_context="ohdiff 2026-11 v1 g32s2/1 words").digest(length=128)


@pytest.mark.parametrize(
    "changes",
    [
        {"min_size": 127},
        {"min_size": 65536},
        {"max_size": 65536},
        {"max_size": (1 << 30) + 1},
        {"avg_size": 4095},
        {"avg_size": (16 << 20) + 1, "max_size": 1 << 30},
        {"threshold_strict": 0},
        {"threshold_strict": 2, "threshold_loose": 1},
        {"threshold_loose": 1 << 32},
        {"words": bytes(127)},
        {"words": bytes(128)},
        {"rule_id": "g32s2/2"},
    ],
)
def test_a_rule_out_of_bounds_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        replace(RULE, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("changes", [{"min_size": 128}, {"max_size": 65537}, {"max_size": 1 << 30}, {"avg_size": 4096}])
def test_a_rule_at_its_bounds_is_a_rule(changes: dict[str, int]) -> None:
    replace(RULE, **{"min_size": 200, **changes})


def test_a_loose_threshold_above_the_lowest_run_is_refused() -> None:
    lowest = lowest_run_hash(RULE.words)
    replace(RULE, threshold_loose=lowest)
    with pytest.raises(UsageError, match="run of one byte"):
        replace(RULE, threshold_loose=lowest + 1)


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33)])
def test_a_key_of_another_length_is_refused(key: bytes) -> None:
    with pytest.raises(UsageError):
        ChunkingRule.from_key(key, avg_size=65536)


@pytest.mark.parametrize("avg_size", [0, -1, 4095, (16 << 20) + 1])
def test_an_average_out_of_bounds_is_refused_before_anything_follows_from_it(avg_size: int) -> None:
    with pytest.raises(UsageError, match="average"):
        ChunkingRule.from_key(KEY, avg_size=avg_size)


def test_a_rule_is_frozen_and_does_not_show_its_words() -> None:
    with pytest.raises(FrozenInstanceError):
        RULE.min_size = 1  # type: ignore[misc]
    assert "words" not in repr(RULE)
    assert ChunkingRule.from_key(KEY, avg_size=65536) == RULE
    assert ChunkingRule.from_key(bytes(32), avg_size=65536) != RULE
