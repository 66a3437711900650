"""Encoding blocks: as planned if that pays, else as plain bytes; each is decoded again and compared.

Plans (deltas, numbers) come from above: they know what a block may stand on. This room only says what a plan must do.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

import zstandard

from ohdiff._kernels import are_equal
from ohdiff.breaks import computing
from ohdiff.errors import IntegrityError
from ohdiff_format.blocks import CODEC_DELTA, CODEC_NUMBERS, CODEC_RAW, CODEC_ZSTD, as_prefix, decode_block_pieces
from ohdiff_format.envelope import Buffer
from ohdiff_format.errors import FormatError
from ohdiff_format.pack import depth_of

from .block_decoder import decode
from .block_encoder import BlockEncoder

if TYPE_CHECKING:
    from .open_block import OpenBlock

# Below this share of the plain bytes a delta is taken without asking what plain compression would give.
_SURE_SHARE: Final = 0.1
# A delta must be this much smaller: it costs the loading of its bases whenever it is read.
_WORTH_SHARE: Final = 0.9
# A smaller delta is so near its base that whatever resembles it resembles the base as well.
_DISTINCT_SHARE: Final = 1 / 64
# What is decoded to be compared stays in the processor's cache. Measured with whole blocks of 8 MiB: 821 MB/s against
# 879 where memory is fast, 434 against 823 where it is not.
_PIECE_SIZE_BYTES: Final = 128 << 10


@dataclass(frozen=True, slots=True)
class Encoded:
    """The payload of a block, and what its record says of it.

    Attributes
    ----------
    base : the bytes of the base chunks, to decode with; let go once that was done.
    is_measured : whether the maker has compared the payload with plain compression already.
    is_proved : whether it was decoded and compared with the block already.
    """

    codec: int
    payload: Buffer
    plain_size: int
    base_prefixes: bytes = b""
    parameters: bytes = b""
    base: bytes = b""
    is_measured: bool = False
    is_proved: bool = False


class EncodingPlan(Protocol):
    """A way to encode one block that may or may not pay; used by one encoder thread."""

    def encode(self, plain: memoryview) -> Encoded | None:
        """The block's payload, or None if there is nothing to gain."""

    def settle(self, *, is_taken: bool) -> None:
        """What became of it."""


class DistantPlan(Protocol):
    """A way to encode one block where its bytes lie, without having them here; used by one encoder thread."""

    def encode(self) -> Encoded | None:
        """A payload that was decoded here, and proved by the id of its chunk; None if the bytes have to come."""


class EncodedObserver(Protocol):
    """Is shown the bytes of each block of data that is bytes and no near copy of its base, on encoder threads."""

    def remember(self, plain: memoryview, sizes: Sequence[int], prefixes: Sequence[bytes], depth: int) -> None: ...


class BlockCompressor(Protocol):
    """Makes zstd frames of blocks elsewhere than on the CPU; shared by all encoder threads."""

    def compress(self, plain: Buffer) -> bytes | None:
        """A frame that is shorter than the block, to be proved by the caller; None if the CPU should make one."""

    def distrust(self) -> None:
        """A frame did not decode to its block."""


class Encoder:
    """What one encoding thread uses again and again: contexts, and room to gather a block and to decode pieces.

    Parameters
    ----------
    compressor : what compresses blocks of data that have no plan, if it is not the CPU.
    """

    def __init__(
        self,
        level: int | None,
        on_encoded: EncodedObserver | None = None,
        compressor: BlockCompressor | None = None,
    ) -> None:
        self._on_encoded = on_encoded
        self._compressor = compressor
        # A compressor waits, and its device's driver makes system calls.
        self._computing = computing if compressor is None else nullcontext()
        self._plain_encoder = BlockEncoder(level)
        self._gathered = bytearray()
        self._decompressor = zstandard.ZstdDecompressor()
        self._piece = bytearray(_PIECE_SIZE_BYTES)

    def encode(self, block: OpenBlock) -> Encoded:
        """Compress a block; IntegrityError unless decoding gives its bytes back."""
        distant = None if block.distant is None else block.distant.encode()
        if distant is not None:
            return replace(distant, base=b"")
        with self._computing, block.gather(self._gathered) as plain:
            encoded = self._made_elsewhere(block, plain) or self._choose(block, plain)
            if encoded.codec == CODEC_RAW:
                # Nothing repeats in such bytes, so little will resemble them.
                return Encoded(CODEC_RAW, bytes(plain), len(plain))
            if not encoded.is_proved and not self._survives(encoded, plain):
                raise IntegrityError("a block did not survive compression", hint="check this machine's memory")
            if self._on_encoded is not None and not block.is_metadata and _is_distinct(encoded):
                self._on_encoded.remember(plain, block.sizes, block.prefixes, depth_of(encoded.parameters))
            return replace(encoded, base=b"")

    def _made_elsewhere(self, block: OpenBlock, plain: memoryview) -> Encoded | None:
        """A frame of the compressor that decodes to the block; None if there is none.

        Metadata and gathered tiny files are the CPU's: its effort pays there, and they are few bytes.
        """
        if self._compressor is None or block.plan is not None or block.is_metadata:
            return None
        if self._plain_encoder.is_tiny(plain, len(block.sizes)):
            return None
        frame = self._compressor.compress(plain)
        if frame is None:
            return None
        encoded = Encoded(CODEC_ZSTD, frame, len(plain), is_proved=True)
        if self._survives(encoded, plain):
            return encoded
        self._compressor.distrust()
        return None

    def _choose(self, block: OpenBlock, plain: memoryview) -> Encoded:
        planned = None if block.plan is None else block.plan.encode(plain)
        chosen = self._better(planned, block, plain)
        if block.plan is not None:
            block.plan.settle(is_taken=chosen is planned)
        return chosen

    def _better(self, planned: Encoded | None, block: OpenBlock, plain: memoryview) -> Encoded:
        """What was planned, unless plain bytes are about as good."""
        if planned is not None and (planned.is_measured or len(planned.payload) < _SURE_SHARE * len(plain)):
            return planned
        simple = Encoded(*self._plain_encoder.encode(plain, len(block.sizes)), len(plain))
        if planned is not None and len(planned.payload) < _WORTH_SHARE * len(simple.payload):
            return planned
        return simple

    def _survives(self, encoded: Encoded, plain: memoryview) -> bool:
        try:
            return self._gives(encoded, plain)
        except FormatError:
            return False

    def _gives(self, encoded: Encoded, plain: memoryview) -> bool:
        if encoded.codec == CODEC_NUMBERS:
            return are_equal(decode(encoded, encoded.payload, encoded.base), plain)
        decompressor = self._decompressor
        if encoded.base:
            decompressor = zstandard.ZstdDecompressor(dict_data=as_prefix(encoded.base))
        start = 0
        with memoryview(self._piece) as room:
            for piece in decode_block_pieces(decompressor, encoded.payload, len(plain), room):
                end = start + len(piece)
                if not are_equal(piece, plain[start:end]):
                    return False
                start = end
        return True


def _is_distinct(encoded: Encoded) -> bool:
    if encoded.codec == CODEC_DELTA:
        return len(encoded.payload) > _DISTINCT_SHARE * encoded.plain_size
    return encoded.codec != CODEC_NUMBERS
