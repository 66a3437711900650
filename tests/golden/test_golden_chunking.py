"""Frozen words, tables, candidates, cuts, ids and features of rule g32s2/1: another result would chunk every repository
anew. A vector that is missing fails; nothing here writes one (regenerate_chunking.py prints them).
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from chunking_inputs import ID_KEY, INPUTS, RULES

from ohdiff.chunking.cpu import CpuEngine, available_kernels
from ohdiff.chunking.rule import RULE_ID, ChunkingRule

VECTORS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "chunking" / "vectors.json").read_text())


def rule_of(name: str) -> ChunkingRule:
    key, min_size, avg_size, max_size = RULES[name]
    return ChunkingRule.from_key(key, min_size=min_size, avg_size=avg_size, max_size=max_size)


def listed(numbers: str) -> list[int]:
    return [int(number) for number in numbers.split()]


def test_there_is_a_vector_for_every_rule_and_input_and_no_other() -> None:
    assert RULE_ID == "g32s2/1"
    assert {name: set(vector["inputs"]) for name, vector in VECTORS.items()} == {name: set(INPUTS) for name in RULES}


@pytest.mark.parametrize("name", RULES)
def test_words_tables_and_thresholds_are_frozen(name: str) -> None:
    rule, vector = rule_of(name), VECTORS[name]
    assert rule.words.hex() == vector["words"]
    assert (rule.threshold_strict, rule.threshold_loose) == (vector["threshold_strict"], vector["threshold_loose"])
    words = struct.unpack("<32I", rule.words)
    terms = [words[byte & 15] ^ words[16 + (byte >> 4)] for byte in range(256)]
    assert struct.pack("<256I", *terms).hex() == vector["terms"]


def test_a_vector_holds_words_of_a_second_draw() -> None:
    first = blake3(RULES["odd"][0] + bytes(4), derive_key_context="ohdiff 2026-11 v1 g32s2/1 words").digest(length=128)
    assert VECTORS["odd"]["words"] != first.hex()


@pytest.mark.parametrize("kernel", available_kernels())
@pytest.mark.parametrize("data", INPUTS)
@pytest.mark.parametrize("name", RULES)
def test_what_every_kernel_finds_is_frozen(name: str, data: str, kernel: str) -> None:
    engine, vector = CpuEngine(rule_of(name), ID_KEY, kernel), VECTORS[name]["inputs"][data]
    positions, hashes = engine.candidates(INPUTS[data])
    cuts, counts = engine.cut_segments(INPUTS[data], [len(INPUTS[data])])
    assert memoryview(positions).cast("Q").tolist() == listed(vector["candidates"])
    assert memoryview(hashes).cast("I").tolist() == listed(vector["hashes"])
    assert memoryview(cuts).cast("Q").tolist() == listed(vector["cuts"])
    assert memoryview(counts).cast("I").tolist() == [len(listed(vector["cuts"]))]
    assert blake3(engine.hash_chunks(INPUTS[data], cuts)).hexdigest() == vector["ids"]
    assert blake3(engine.features(INPUTS[data], cuts)).hexdigest() == vector["features"]


def test_the_vectors_hold_enough_to_notice_a_change() -> None:
    found = [len(listed(vector["inputs"]["noise"]["candidates"])) for vector in VECTORS.values()]
    cuts = [len(listed(vector["inputs"]["noise"]["cuts"])) for vector in VECTORS.values()]
    assert sum(found) > 1000
    assert sum(cuts) > 250
