"""Rules and bytes for kernels: noise, the project's own sources, runs, periods, and periods that flood."""

from __future__ import annotations

from functools import cache
from itertools import accumulate
from pathlib import Path

from contract.engine_oracle import SAMPLE_MASK, flooding_pattern, hashes, periodic, random_bytes

from ohdiff.chunking.rule import derive_words

from .pipeline import Rule

ROOT = Path(__file__).resolve().parent.parent.parent
WORDS = derive_words(random_bytes("cuda kernels", 32))
KEY = random_bytes("ids", 32)

# Chunks of a few hundred bytes, and a candidate in 1024 positions.
TINY = Rule(WORDS, 128, 512, 2048, 1 << 21, 1 << 22)
# As repositories have it, at a quarter of the size.
USUAL = Rule(WORDS, 2048, 8192, 32_768, 1 << 17, 1 << 21)
RULES = {"tiny": TINY, "usual": USUAL}


@cache
def sources(size: int) -> bytes:
    """The project's own sources, back to back."""
    paths = sorted([*(ROOT / "kernels").glob("*.?pp"), *(ROOT / "ohdiff").rglob("*.py")])
    return b"".join(path.read_bytes() for path in paths)[:size]


@cache
def flood(size: int, period: int = 5) -> bytes:
    """A period with a candidate in each repetition."""
    return periodic(flooding_pattern(period, WORDS, TINY.threshold_loose), size)


def mixed(size: int) -> bytes:
    """Noise, floods and runs in turns, none of them as long as a whole number of anything."""
    parts = [random_bytes("mixed", 5003), flood(3001), bytes(1009), random_bytes("more", 777), flood(9001, 3)]
    whole = b"".join(parts)
    return (whole * ceil_of(size, len(whole)))[:size]


def ceil_of(value: int, by: int) -> int:
    return -(-value // by)


@cache
def judged(size: int = 20_000) -> tuple[bytes, list[int]]:
    """Noise, and the hash at each of its positions."""
    noise = random_bytes("judged", size)
    return noise, hashes(noise, WORDS)


def beginning_before(before: int, threshold: int, size: int = 3000) -> bytes:
    """Noise with a hash below `threshold` at position `before`."""
    noise, found = judged()
    at = next(at for at in range(before + 64, len(noise) - size) if found[at] < threshold)
    return noise[at - before :][:size]


def chunks_around_a_sample() -> tuple[bytes, list[int]]:
    """Noise and ends of chunks of one window: one ends before a window that is sampled, the other with one."""
    noise, found = judged()
    sampled = (at for at in range(64, len(noise)) if found[at] & SAMPLE_MASK == 0)
    first = next(sampled)
    second = next(at for at in sampled if at > first + 200)
    return noise, [first - 64, first, second - 63, second + 1]


def kinds(size: int) -> dict[str, bytes]:
    return {
        "noise": random_bytes("noise", size),
        "sources": sources(size),
        "run": bytes(size),
        "period": periodic(b"abracadabra!?", size),
        "flood": flood(size),
        "mixed": mixed(size),
    }


def uneven_ends(size: int) -> list[int]:
    """Ends of files of all sizes from nothing up, that fill `size`."""
    sizes = [
        0,
        1,
        63,
        64,
        65,
        127,
        128,
        129,
        0,
        0,
        500,
        511,
        512,
        513,
        2047,
        2048,
        2049,
        4095,
        4096,
        4097,
        8191,
        20_000,
    ]
    cycle = (sizes * ceil_of(size, sum(sizes)))[:]
    ends = [end for end in accumulate(cycle) if end < size]
    return [*ends, size, size]
