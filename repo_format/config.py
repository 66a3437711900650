"""The config object: what a repository is, before any key is known (SPEC section 3).

Two lines of text: a JSON object, and the hex of its keyed BLAKE3 under a sub-key of the master key, so that a
tampered chunker or cipher is noticed by whoever can open the repository.
"""

from __future__ import annotations

import hmac
from typing import Literal

import msgspec
from blake3 import blake3

from .errors import AuthenticationError, FormatError, UnknownFeatureError
from .limits import CHUNK_SIZE_BYTES_MAX, CONFIG_SIZE_BYTES_MAX, FORMAT_VERSION, KEY_SIZE, Signed64

FORMAT_NAME = "ohdiff repository"
KNOWN_MANDATORY_FEATURES: frozenset[str] = frozenset()
KNOWN_RULES: frozenset[str] = frozenset({"g32s2/1"})
KNOWN_ENCRYPTIONS: frozenset[str] = frozenset({"aes-256-gcm", "chacha20-poly1305", "none"})
# Two windows of the rule: then every window that decides about a cut lies inside its chunk.
MIN_SIZE_MIN = 128
AVG_SIZE_MIN = 4 << 10
# Keyed words are drawn so that no run of one byte is a candidate up to this threshold.
THRESHOLD_MAX = 1 << 22


class ChunkerConfig(msgspec.Struct, frozen=True):
    """Parameters of the boundary rule; sizes in bytes, thresholds as 32-bit integers."""

    rule: str
    min_size: int
    avg_size: int
    max_size: int
    threshold_strict: int
    threshold_loose: int
    seed: bytes = b""
    """32 bytes when the chunker key is not derived from the master key (copied from another repository)."""


class Config(msgspec.Struct, frozen=True):
    """The repository's description; `master_key` is set only in repositories without encryption."""

    format: str
    version: int
    id: bytes
    created_ns: Signed64
    encryption: Literal["aes-256-gcm", "chacha20-poly1305", "none"]
    chunker: ChunkerConfig
    mandatory_features: tuple[str, ...] = ()
    optional_features: tuple[str, ...] = ()
    master_key: bytes = b""


def encode_config(config: Config, mac_key: bytes) -> bytes:
    """The stored form of `config`, authenticated under `mac_key`; FormatError if no reader would accept it."""
    _check(config)
    body = msgspec.json.encode(config)
    return body + b"\n" + blake3(body, key=mac_key).hexdigest().encode() + b"\n"


def decode_config(data: bytes) -> Config:
    """Parse a config and refuse what this version does not know; does not authenticate it."""
    if len(data) > CONFIG_SIZE_BYTES_MAX:
        raise FormatError("the config is larger than its limit")
    body, _, _ = data.partition(b"\n")
    try:
        config = msgspec.json.decode(body, type=Config)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _classify(body, error) from error
    _check(config)
    return config


def authenticate_config(data: bytes, mac_key: bytes) -> None:
    """Raise AuthenticationError unless the second line is the MAC of the first."""
    body, _, rest = data.partition(b"\n")
    expected = blake3(body, key=mac_key).hexdigest().encode() + b"\n"
    if not hmac.compare_digest(expected, rest):
        raise AuthenticationError("the config does not match its authentication code")


class _Claims(msgspec.Struct):
    format: str
    version: int
    encryption: str = "none"
    mandatory_features: tuple[str, ...] = ()


def _classify(body: bytes, error: Exception) -> FormatError:
    """A later version may have fields that we cannot type: what it says it needs is the better message."""
    try:
        _check_claims(msgspec.json.decode(body, type=_Claims))
    except FormatError as claim:
        return claim
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return FormatError(f"not a config: {error}")


def _check_claims(claims: _Claims | Config) -> None:
    if claims.format != FORMAT_NAME:
        raise FormatError("not the config of an ohdiff repository")
    if claims.version != FORMAT_VERSION:
        raise UnknownFeatureError(f"repository format version {claims.version}")
    unknown = sorted(set(claims.mandatory_features) - KNOWN_MANDATORY_FEATURES)
    if unknown:
        raise UnknownFeatureError(f"mandatory feature {', '.join(unknown)}")
    if claims.encryption not in KNOWN_ENCRYPTIONS:
        raise UnknownFeatureError(f"encryption {claims.encryption}")


def _check(config: Config) -> None:
    _check_claims(config)
    if len(config.id) != KEY_SIZE or len(config.master_key) not in (0, KEY_SIZE):
        raise FormatError("ids and keys have 32 bytes")
    if (config.encryption == "none") != bool(config.master_key):
        raise FormatError("the master key stands in the config exactly when there is no encryption")
    _check_chunker(config.chunker)


def _check_chunker(chunker: ChunkerConfig) -> None:
    if chunker.rule not in KNOWN_RULES:
        raise UnknownFeatureError(f"boundary rule {chunker.rule}")
    in_order = MIN_SIZE_MIN <= chunker.min_size < chunker.avg_size < chunker.max_size <= CHUNK_SIZE_BYTES_MAX
    if not in_order or chunker.avg_size < AVG_SIZE_MIN:
        raise FormatError("the chunker's sizes are out of bounds")
    if not 0 < chunker.threshold_strict <= chunker.threshold_loose <= THRESHOLD_MAX:
        raise FormatError("the chunker's thresholds are out of bounds")
    if len(chunker.seed) not in (0, KEY_SIZE):
        raise FormatError("a chunker seed has 32 bytes")
