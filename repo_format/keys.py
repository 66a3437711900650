"""Key derivation and the key objects that hold the wrapped master key (SPEC section 4).

master key -> sub-keys by BLAKE3 derive_key, one context per use, so that a leaked sub-key gives away neither its
siblings nor the master key. A key object wraps the master key under a key-encryption key (AES-256 key wrap,
RFC 3394) that comes from a password (argon2id, RFC 9106) or from a key file of 32 random bytes.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from blake3 import blake3
from cryptography.hazmat.primitives import keywrap
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from .errors import AuthenticationError, FormatError, UnknownFeatureError
from .limits import KEY_OBJECT_SIZE_BYTES_MAX, KEY_SIZE, Signed64

CONTEXT_CHUNK_ID = "ohdiff 2026-11 v1 chunk id"
CONTEXT_CHUNKER = "ohdiff 2026-11 v1 chunker"
CONTEXT_WRAPPING = "ohdiff 2026-11 v1 data key wrapping"
CONTEXT_CONFIG = "ohdiff 2026-11 v1 config mac"
CONTEXT_KEY_FILE = "ohdiff 2026-11 v1 key file"

ARGON2_MEMORY_KIB = 64 * 1024
ARGON2_PASSES = 3
ARGON2_LANES = 4
KEY_VERSION = 1
KNOWN_KDFS = frozenset({"argon2id", "keyfile"})
# A hostile key object must not make us allocate or compute without bound.
_ARGON2_MEMORY_KIB_MAX = 1024 * 1024
_ARGON2_PASSES_MAX = 16
_ARGON2_LANES_MAX = 64


class KeyObject(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """One way to open the repository, as stored (JSON) in `keys/`."""

    version: int
    kdf: Literal["argon2id", "keyfile"]
    wrapped: bytes
    salt: bytes = b""
    memory_kib: int = 0
    passes: int = 0
    lanes: int = 0
    label: str = ""
    created_ns: Signed64 = 0
    host: str = ""


class _Claims(msgspec.Struct):
    version: int
    kdf: str


def derive_key(master: bytes, context: str) -> bytes:
    """The 32-byte sub-key of `master` for one use."""
    return blake3(master, derive_key_context=context).digest()


def key_from_password(password: bytes, key: KeyObject) -> bytes:
    """The key-encryption key that `password` gives with the parameters of `key`."""
    return Argon2id(
        salt=key.salt, length=KEY_SIZE, iterations=key.passes, lanes=key.lanes, memory_cost=key.memory_kib
    ).derive(password)


def key_from_file(secret: bytes) -> bytes:
    """The key-encryption key that the 32 bytes of a key file give."""
    return derive_key(secret, CONTEXT_KEY_FILE)


def wrap_key(encryption_key: bytes, key: bytes) -> bytes:
    """Wrap a 32-byte key (RFC 3394): 40 bytes."""
    return keywrap.aes_key_wrap(encryption_key, key)


def unwrap_key(encryption_key: bytes, wrapped: bytes) -> bytes:
    """Undo `wrap_key`; AuthenticationError when the key-encryption key is not the right one."""
    try:
        return keywrap.aes_key_unwrap(encryption_key, wrapped)
    except (keywrap.InvalidUnwrap, ValueError) as error:
        raise AuthenticationError("the wrapped key does not open with this key") from error


def encode_key(key: KeyObject) -> bytes:
    """The stored form: one JSON object and a newline."""
    return msgspec.json.encode(key) + b"\n"


def decode_key(data: bytes) -> KeyObject:
    """Parse and check a key object."""
    if len(data) > KEY_OBJECT_SIZE_BYTES_MAX:
        raise FormatError("the key object is larger than its limit")
    try:
        claims = msgspec.json.decode(data, type=_Claims)
        if claims.version != KEY_VERSION or claims.kdf not in KNOWN_KDFS:
            raise UnknownFeatureError(f"key object of version {claims.version} with {claims.kdf}")
        key = msgspec.json.decode(data, type=KeyObject)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"not a key object: {error}") from error
    if len(key.wrapped) != KEY_SIZE + 8:
        raise FormatError("a wrapped master key has 40 bytes")
    if key.kdf == "argon2id":
        _check_argon2(key)
    return key


def _check_argon2(key: KeyObject) -> None:
    sound = (
        8 <= len(key.salt) <= 64
        and 1 <= key.passes <= _ARGON2_PASSES_MAX
        and 1 <= key.lanes <= _ARGON2_LANES_MAX
        and 8 * key.lanes <= key.memory_kib <= _ARGON2_MEMORY_KIB_MAX
    )
    if not sound:
        raise FormatError("argon2id parameters are out of bounds")
