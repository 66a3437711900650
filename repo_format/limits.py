"""Limits that every decoder checks before it allocates (SPEC section 2)."""

from __future__ import annotations

from typing import Annotated

import msgspec

FORMAT_VERSION = 1
ID_SIZE = 32
ID_PREFIX_SIZE = 16
KEY_SIZE = 32
TAG_SIZE = 16
CHUNK_SIZE_BYTES_MAX = 16 << 20
BLOCK_SIZE_BYTES_MAX = 32 << 20
OBJECT_PLAIN_SIZE_BYTES_MAX = 64 << 20
PACK_SIZE_BYTES_MAX = 1 << 30
CONFIG_SIZE_BYTES_MAX = 1 << 16
KEY_OBJECT_SIZE_BYTES_MAX = 1 << 16
CONTENT_DEPTH_MAX = 4
# Counts are bounded as well as bytes: a list item of one byte becomes an object of up to 200 bytes in memory.
BLOCKS_PER_PACK_MAX = 1 << 16
CHUNKS_PER_BLOCK_MAX = 1 << 20
PACKS_PER_INDEX_MAX = 1 << 16
LEAF_ROWS_MAX = 1 << 16
# What a delta may stand on: so many chunks of together so many bytes, and so many blocks one upon the other.
BASES_PER_BLOCK_MAX = 1 << 16
BASE_SIZE_BYTES_MAX = 32 << 20
DEPTH_MAX = 4

Length = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Unsigned = Annotated[int, msgspec.Meta(ge=0)]
Signed64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
