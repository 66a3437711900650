"""The envelope of packs, index objects and snapshots: header, wrapped data key, sealed messages (SPEC section 5).

Every object has a data key of its own, drawn at random and wrapped under the repository's wrapping key; the scheme
id leaves room for a later scheme that seals it to a public key. A message's nonce is its number under that key, so
no nonce can repeat; the header and the number are associated data, so no message can be moved.
"""

from __future__ import annotations

import struct
from typing import Final, Protocol

import zstandard
from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from .errors import AuthenticationError, FormatError, UnknownFeatureError
from .keys import unwrap_key, wrap_key
from .limits import FORMAT_VERSION, OBJECT_PLAIN_SIZE_BYTES_MAX, TAG_SIZE

Buffer = bytes | bytearray | memoryview

MAGIC: Final = b"OHDIFF"
KIND_PACK, KIND_INDEX, KIND_SNAPSHOT = 1, 2, 3
SCHEME_NONE, SCHEME_AES_KEY_WRAP = 0, 1
CIPHERS: Final = {"none": 0, "aes-256-gcm": 1, "chacha20-poly1305": 2}
_FIXED: Final = struct.Struct("<6sBBBBHI")
HEADER_SIZE_MAX: Final = _FIXED.size + 40
_WRAPPED_SIZE: Final = {SCHEME_NONE: 0, SCHEME_AES_KEY_WRAP: 40}
_PLAIN_PREFIX: Final = struct.Struct("<BI")
_PLAIN_RAW, _PLAIN_ZSTD = 0, 1


class _Aead(Protocol):
    def encrypt(self, nonce: bytes, data: Buffer, associated_data: bytes | None) -> bytes: ...
    def decrypt(self, nonce: bytes, data: Buffer, associated_data: bytes | None) -> bytes: ...
    def encrypt_into(self, nonce: bytes, data: Buffer, associated_data: bytes | None, buf: Buffer) -> int: ...
    def decrypt_into(self, nonce: bytes, data: Buffer, associated_data: bytes | None, buf: Buffer) -> int: ...


class _ChecksumOnly:
    """Cipher 0: plain bytes and the first 16 bytes of an unkeyed BLAKE3, against damage but not against people."""

    def encrypt(self, nonce: bytes, data: Buffer, associated_data: bytes | None) -> bytes:
        return b"".join((data, self._tag(nonce, data, associated_data)))

    def decrypt(self, nonce: bytes, data: Buffer, associated_data: bytes | None) -> bytes:
        body = memoryview(data)[:-TAG_SIZE]
        if len(data) < TAG_SIZE or self._tag(nonce, body, associated_data) != bytes(data[-TAG_SIZE:]):
            raise InvalidTag
        return bytes(body)

    def encrypt_into(self, nonce: bytes, data: Buffer, associated_data: bytes | None, buf: Buffer) -> int:
        target = memoryview(buf)
        target[: len(data)] = data
        target[len(data) :] = self._tag(nonce, data, associated_data)
        return len(target)

    def decrypt_into(self, nonce: bytes, data: Buffer, associated_data: bytes | None, buf: Buffer) -> int:
        target = memoryview(buf)
        target[:] = self.decrypt(nonce, data, associated_data)
        return len(target)

    @staticmethod
    def _tag(nonce: bytes, data: Buffer, associated_data: bytes | None) -> bytes:
        hasher = blake3(nonce)
        hasher.update(associated_data or b"")
        hasher.update(data)
        return hasher.digest(length=TAG_SIZE)


class Sealer:
    """Seals and opens the messages of one object.

    Parameters
    ----------
    header : the object's whole header, bound to every message.
    """

    __slots__ = ("_aead", "header")

    def __init__(self, header: bytes, aead: _Aead) -> None:
        self.header = header
        self._aead = aead

    def seal(self, number: int, plain: Buffer) -> bytes:
        """The sealed message: as long as `plain` plus 16 bytes. A number is used once per object."""
        return self._aead.encrypt(number.to_bytes(12, "little"), plain, self.header)

    def seal_into(self, number: int, plain: Buffer, target: memoryview) -> None:
        """As `seal`; fills `target`, which is exactly as long as the sealed message."""
        self._aead.encrypt_into(number.to_bytes(12, "little"), plain, self.header, target)

    def open_into(self, number: int, sealed: Buffer, target: memoryview) -> None:
        """As `open`; fills `target`, which is exactly as long as the plain message."""
        try:
            self._aead.decrypt_into(number.to_bytes(12, "little"), sealed, self.header, target)
        except InvalidTag as error:
            raise AuthenticationError("a sealed message does not match its tag") from error

    def open(self, number: int, sealed: Buffer) -> bytes:
        """The plain message; AuthenticationError if it was changed, moved, or made under another key."""
        if len(sealed) < TAG_SIZE:
            raise AuthenticationError("a sealed message is shorter than its tag")
        try:
            return self._aead.decrypt(number.to_bytes(12, "little"), sealed, self.header)
        except InvalidTag as error:
            raise AuthenticationError("a sealed message does not match its tag") from error


def new_sealer(kind: int, encryption: str, wrapping_key: bytes, data_key: bytes) -> Sealer:
    """A sealer for a new object; `data_key` is 32 fresh random bytes, used for this object only."""
    cipher = CIPHERS[encryption]
    scheme = SCHEME_NONE if cipher == 0 else SCHEME_AES_KEY_WRAP
    wrapped = b"" if cipher == 0 else wrap_key(wrapping_key, data_key)
    header = _FIXED.pack(MAGIC, FORMAT_VERSION, kind, scheme, cipher, len(wrapped), 0) + wrapped
    return Sealer(header, _aead(cipher, data_key))


def open_sealer(data: Buffer, kind: int, encryption: str, wrapping_key: bytes) -> Sealer:
    """The sealer of an existing object from its first bytes (HEADER_SIZE_MAX of them are enough).

    The cipher must be the one of the repository's config: else whoever can write to the storage, and has no key,
    could add objects of cipher 0, and they would pass.
    """
    if len(data) < _FIXED.size:
        raise FormatError("the object is shorter than its header")
    magic, version, found_kind, scheme, cipher, wrapped_size, reserved = _FIXED.unpack_from(data)
    if magic != MAGIC:
        raise FormatError("the object does not begin with OHDIFF")
    if version != FORMAT_VERSION or reserved:
        raise UnknownFeatureError(f"object of format version {version}, reserved {reserved}")
    if found_kind != kind:
        raise FormatError(f"object of kind {found_kind} where kind {kind} is expected")
    if scheme not in _WRAPPED_SIZE or cipher not in CIPHERS.values():
        raise UnknownFeatureError(f"wrapping scheme {scheme}, cipher {cipher}")
    if wrapped_size != _WRAPPED_SIZE[scheme] or (scheme == SCHEME_NONE) != (cipher == 0):
        raise FormatError("wrapping scheme and cipher do not fit together")
    if cipher != CIPHERS[encryption]:
        raise AuthenticationError(f"object of cipher {cipher} in a repository of {encryption}")
    header = bytes(data[: _FIXED.size + wrapped_size])
    if len(header) != _FIXED.size + wrapped_size:
        raise FormatError("the object is shorter than its header")
    data_key = b"" if scheme == SCHEME_NONE else unwrap_key(wrapping_key, header[_FIXED.size :])
    return Sealer(header, _aead(cipher, data_key))


def _aead(cipher: int, data_key: bytes) -> _Aead:
    if cipher == CIPHERS["aes-256-gcm"]:
        return AESGCM(data_key)
    if cipher == CIPHERS["chacha20-poly1305"]:
        return ChaCha20Poly1305(data_key)
    return _ChecksumOnly()


def pack_plain(data: bytes) -> bytes:
    """Compress an object's plain body: codec byte, u32 plain length, payload."""
    if len(data) > OBJECT_PLAIN_SIZE_BYTES_MAX:
        raise FormatError("an object's body is larger than its limit")
    packed = zstandard.ZstdCompressor(level=3).compress(data)
    codec, payload = (_PLAIN_ZSTD, packed) if len(packed) < len(data) else (_PLAIN_RAW, data)
    return _PLAIN_PREFIX.pack(codec, len(data)) + payload


def unpack_plain(data: bytes) -> bytes:
    """Undo `pack_plain`, allocating no more than the declared and checked length."""
    if len(data) < _PLAIN_PREFIX.size:
        raise FormatError("an object's body is shorter than its prefix")
    codec, size = _PLAIN_PREFIX.unpack_from(data)
    payload = memoryview(data)[_PLAIN_PREFIX.size :]
    if size > OBJECT_PLAIN_SIZE_BYTES_MAX:
        raise FormatError("an object's body is larger than its limit")
    if codec == _PLAIN_ZSTD:
        return decompress_frame(payload, size)
    if codec != _PLAIN_RAW:
        raise UnknownFeatureError(f"body codec {codec}")
    if len(payload) != size:
        raise FormatError("a raw body is not as long as it says")
    return bytes(payload)


def decompress_frame(frame: Buffer, size: int, prefix: zstandard.ZstdCompressionDict | None = None) -> bytes:
    """Decompress exactly one zstd frame that must declare and give exactly `size` bytes."""
    check_frame(frame, size)
    try:
        plain = zstandard.ZstdDecompressor(dict_data=prefix).decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FormatError(f"a zstd frame does not decode: {error}") from error
    if len(plain) != size:
        raise FormatError("a zstd frame gave another size than declared")
    return plain


def check_frame(frame: Buffer, size: int) -> None:
    """Raise unless a zstd frame declares exactly `size` bytes and needs no dictionary."""
    try:
        parameters = zstandard.get_frame_parameters(frame)
    except zstandard.ZstdError as error:
        raise FormatError(f"not a zstd frame: {error}") from error
    if parameters.content_size != size or parameters.dict_id:
        raise FormatError("a zstd frame does not declare the expected size")
