"""Prints the golden chunking vectors, for a person to review and commit; to be run only when a new rule is meant.

python tests/golden/regenerate_chunking.py > tests/golden/chunking/vectors.json

Everything comes from the slow oracle of tests/contract and from a second derivation of the words, nothing from the
product: a vector says what the rule is, not what the code does.
"""

from __future__ import annotations

import json
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3
from chunking_inputs import ID_KEY, INPUTS, RULES

sys.path.append(str(Path(__file__).parents[1] / "contract"))

import engine_oracle as oracle

LOOSEST_THRESHOLD = 1 << 22


@dataclass(frozen=True)
class Values:
    """A rule as the oracle takes it."""

    words: bytes
    min_size: int
    avg_size: int
    max_size: int
    threshold_strict: int
    threshold_loose: int


def words_of(key: bytes) -> bytes:
    counter = 0
    while True:
        material = key + struct.pack("<I", counter)
        words = blake3(material, derive_key_context="ohdiff 2026-11 v1 g32s2/1 words").digest(length=128)
        runs = (oracle.window_hash(bytes([byte]) * 64, words) for byte in range(256))
        if all(found >= LOOSEST_THRESHOLD for found in runs):
            return words
        counter += 1


def rule_of(name: str) -> Values:
    key, min_size, avg_size, max_size = RULES[name]
    return Values(words_of(key), min_size, avg_size, max_size, 2**32 // (avg_size * 4), 2**34 // avg_size)


def vector_of(rule: Values) -> dict[str, object]:
    terms = struct.pack("<256I", *oracle.byte_terms(rule.words))
    return {
        "words": rule.words.hex(),
        "terms": terms.hex(),
        "threshold_strict": rule.threshold_strict,
        "threshold_loose": rule.threshold_loose,
        "inputs": {name: results_of(data, rule) for name, data in INPUTS.items()},
    }


def results_of(data: bytes, rule: Values) -> dict[str, object]:
    found = oracle.hashes(data, rule.words)
    cuts = oracle.cuts_of(found, rule)
    chunks = [data[start:end] for start, end in zip([0, *cuts], cuts, strict=False)]
    features = [value for chunk in chunks for value in oracle.features_of(chunk, rule.words)]
    positions, hashes = oracle.candidates_of(found, rule)
    return {
        "candidates": listed(positions),
        "hashes": listed(hashes),
        "cuts": listed(cuts),
        "ids": blake3(b"".join(blake3(chunk, key=ID_KEY).digest() for chunk in chunks)).hexdigest(),
        "features": blake3(struct.pack(f"<{len(features)}I", *features)).hexdigest(),
    }


def listed(values: list[int]) -> str:
    return " ".join(map(str, values))


def main() -> None:
    """Print one JSON object."""
    vectors = {name: vector_of(rule_of(name)) for name in RULES}
    sys.stdout.write(json.dumps(vectors, indent=1) + "\n")


if __name__ == "__main__":
    main()
