"""Whether a folder is a checkpoint, and whether it is whole: by the names in it, and by its index of shards.

Written for the layouts of safetensors and PyTorch: numbered shards with an index, and distributed checkpoints, whose
.metadata is written last. Pure; reading an index is the caller's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Final

import msgspec

INDEX_SIZE_BYTES_MAX: Final = 64 << 20
# Reasons that are told of one kind.
REASONS_MAX: Final = 8

_SHARD: Final = re.compile(rb"(?s)(.*?)-?(\d{1,6})-of-(\d{1,6})(\.[^/]*)")
_INDEX: Final = re.compile(rb"(?s).+\.(?:safetensors|bin|pt|pth)\.index(?:\.[\w-]+)?\.json")
_DISTRIBUTED: Final = re.compile(rb"__\d{1,6}_\d{1,6}\.distcp")
# .tmp, .tmp12, .tmp-4f2a; .part only alone, since numbered parts are how some split a finished file.
_TEMPORARY_END: Final = re.compile(
    rb"(?i)\.(?:(?:tmp|temp|incomplete|partial)(?:[._-][0-9a-z]{1,16}|\d{1,9})?|part|inprogress|writing)\Z"
)
_TEMPORARY_START: Final = re.compile(rb"(?i)\.?tmp(?:[._-]|[0-9a-z_]{8}\Z)")
_WEIGHTS: Final = re.compile(rb"(?is).*\.(?:safetensors|sft|pt|pth|ckpt|distcp|gguf)|pytorch_model.*\.bin")
_METADATA: Final = b".metadata"


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


def looks_like_checkpoint(names: Collection[bytes]) -> bool:
    """Whether a folder with these names holds a model's or a training run's state, whole or not yet."""
    return any(_WEIGHTS.fullmatch(_final_name(name)) or _INDEX.fullmatch(name) for name in names)


def missing_of_checkpoint(names: Collection[bytes], read_index: Callable[[bytes], bytes]) -> list[str]:
    """Why a checkpoint folder is not whole; nothing for a folder that is, or that is no checkpoint.

    Parameters
    ----------
    names : of everything in the folder.
    read_index : the bytes of one of these names; it need not read more than INDEX_SIZE_BYTES_MAX + 1 of them. What it
        raises passes through.
    """
    if not looks_like_checkpoint(names):
        return []
    present = set(names)
    return [
        *_limited(f"{_shown(name)} is a temporary file" for name in sorted(present) if is_temporary_name(name)),
        *_limited(_missing_shards(present)),
        *_limited(_missing_of_indexes(present, read_index)),
        *_limited(_missing_of_distributed(present)),
    ]


def is_temporary_name(name: bytes) -> bool:
    """Whether a file or folder is called as those are that are still being written."""
    return _TEMPORARY_END.search(name) is not None or _TEMPORARY_START.match(name) is not None


def _final_name(name: bytes) -> bytes:
    """What a file that is still being written will be called, where its name tells."""
    return _TEMPORARY_END.sub(b"", name)


def _missing_shards(present: set[bytes]) -> Iterator[str]:
    sets: dict[tuple[bytes, bytes, bytes], set[int]] = {}
    for name in present:
        match = _SHARD.fullmatch(name)
        if match is not None and _WEIGHTS.fullmatch(name):
            sets.setdefault((name[: match.start(2)], match[3], match[4]), set()).add(int(match[2]))
    for (before, total, after), numbers in sorted(sets.items()):
        # Shards are numbered from 1, but for some writers from 0.
        first = 0 if 0 in numbers else 1
        for number in range(first, first + int(total)):
            if number not in numbers:
                yield f"{_shown(before + str(number).zfill(len(total)).encode() + b'-of-' + total + after)} is missing"


def _missing_of_indexes(present: set[bytes], read_index: Callable[[bytes], bytes]) -> Iterator[str]:
    for name in sorted(present):
        if not _INDEX.fullmatch(name):
            continue
        shards = _shards_of_index(read_index(name))
        if shards is None:
            yield f"{_shown(name)} is not a whole index"
            continue
        for shard in sorted(shards - present):
            if b"/" not in shard:
                yield f"{_shown(shard)} is missing, which {_shown(name)} names"


def _shards_of_index(data: bytes) -> set[bytes] | None:
    if len(data) > INDEX_SIZE_BYTES_MAX:
        return None
    try:
        index = msgspec.json.decode(data, type=_Index)
        return {shard.encode() for shard in index.weight_map.values()}
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _missing_of_distributed(present: set[bytes]) -> Iterator[str]:
    """Ranks that had nothing to write leave no file, so that only the metadata tells."""
    if _METADATA not in present and any(map(_DISTRIBUTED.fullmatch, present)):
        yield ".metadata is missing, which is written last"


def _limited(reasons: Iterator[str]) -> Iterator[str]:
    """The first reasons; asking for no more of them bounds the work, whatever number of shards a name claims."""
    yield from islice(reasons, REASONS_MAX)
    if next(reasons, None) is not None:
        yield "and more"


def _shown(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
