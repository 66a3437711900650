"""The inputs of the golden chunking vectors: which rules, which bytes. They are made again, not stored."""

from __future__ import annotations

from blake3 import blake3

# name -> (chunker key, minimum, average, maximum); the first words drawn under the key of "odd" are rejected.
RULES: dict[str, tuple[bytes, int, int, int]] = {
    "smallest": (bytes(range(32)), 128, 4096, 16384),
    "odd": (bytes(range(1, 33)), 1001, 4999, 9001),
    "usual": (b"a chunker key of thirty-two byte", 16384, 65536, 262144),
    "large": (bytes([255]) * 32, 262144, 1048576, 4194304),
}
ID_KEY = bytes(range(64, 96))


def noise(size: int) -> bytes:
    """The BLAKE3 output stream of a label."""
    return blake3(b"golden chunking noise").digest(length=size)


def letters(size: int) -> bytes:
    """The same stream, each byte reduced to one of 20 symbols."""
    symbols = b"abcdefghij \n(){};=.,"
    return bytes(symbols[byte % len(symbols)] for byte in noise(size))


def periodic(size: int) -> bytes:
    """A pattern of 37 bytes that repeats."""
    return (bytes(range(100, 137)) * (size // 37 + 1))[:size]


# name -> bytes; each rule cuts each of them.
INPUTS: dict[str, bytes] = {
    "empty": b"",
    "one byte": b"x",
    "one window": noise(64),
    "noise": noise(700_001),
    "letters": letters(300_000),
    "zeros": bytes(100_000),
    "periodic": periodic(50_000),
    "noise, zeros, noise": noise(90_000) + bytes(40_000) + noise(90_000),
}
