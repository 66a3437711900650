"""The engine that a repository's chunker needs, the chunkers of new repositories, and the profile of a device."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from ohdiff.chunking.compressor import CompressorChoice, select_compressor
from ohdiff.chunking.cuda.placement import DeviceProfile
from ohdiff.chunking.engine import Accelerator, Engine, EngineChoice
from ohdiff.chunking.rule import RULE_ID, ChunkingRule
from ohdiff.errors import UsageError
from ohdiff.operations.direct_reading import open_direct
from ohdiff.operations.opening import choose_engine
from ohdiff.repository.block_encoder import DEFAULT_LEVEL
from ohdiff.repository.chunk_writer import BLOCK_SIZE_BYTES
from ohdiff_format.config import ChunkerConfig
from ohdiff_format.limits import CHUNK_SIZE_BYTES_MAX, KEY_SIZE

from . import environment
from .text import parse_size

if TYPE_CHECKING:
    from ohdiff.chunking.cuda.direct import DirectReader

DEFAULT_CHUNK_SIZE_BYTES: Final = 32 << 10
_PROFILE_NAME: Final = "device-profile.json"


def chunker_of_size(avg_size: int) -> ChunkerConfig:
    """The chunker of a new repository with chunks of this average size."""
    rule = ChunkingRule.from_key(bytes(KEY_SIZE), avg_size=avg_size)
    if rule.max_size > CHUNK_SIZE_BYTES_MAX:
        raise UsageError(f"an average chunk of {avg_size} bytes is too large", hint="use 4K to 4M; the default is 32K")
    return ChunkerConfig(
        rule=RULE_ID,
        min_size=rule.min_size,
        avg_size=rule.avg_size,
        max_size=rule.max_size,
        threshold_strict=rule.threshold_strict,
        threshold_loose=rule.threshold_loose,
    )


def default_chunker() -> ChunkerConfig:
    """The chunker of a new repository."""
    return chunker_of_size(DEFAULT_CHUNK_SIZE_BYTES)


def choose(
    chunker: ChunkerConfig,
    chunker_key: bytes,
    id_key: bytes,
    name: str,
    kernel: str,
    device_memory: int | None = None,
) -> EngineChoice:
    """The engine for a repository; one that is named is a demand.

    Parameters
    ----------
    device_memory : ceiling of device memory in bytes; None for what OHDIFF_DEVICE_MEMORY says, or the default.
    """
    return choose_engine(chunker, chunker_key, id_key, name, kernel, accelerator(device_memory))


def choose_compressor(name: str, level: int | None, *, is_scavenging: bool) -> CompressorChoice:
    """What compresses blocks at this level; one that is named is a demand."""
    if level is None:
        return CompressorChoice(None, "no compression", None)
    if is_scavenging and name == "auto":
        return CompressorChoice(None, "compression on the CPU: who scavenges takes no more of a device", None)
    return select_compressor(name, accelerator(), BLOCK_SIZE_BYTES, is_default_level=level == DEFAULT_LEVEL)


def direct_reader(engine: Engine) -> DirectReader | None:
    """What reads files past the CPU into an engine's device; None where nothing can."""
    tame_cufile()
    return open_direct(engine)


def tame_cufile() -> None:
    """Keep cuFile from reading through the CPU, and from a log in the user's folder, before it is loaded.

    What the user has set himself stays.
    """
    os.environ.setdefault("CUFILE_ALLOW_COMPAT_MODE", "false")
    os.environ.setdefault("CUFILE_LOGFILE_PATH", os.devnull)


def engine_without_repository(name: str, kernel: str, device_memory: int | None = None) -> EngineChoice:
    """An engine whose ids compare among themselves only."""
    return choose(default_chunker(), os.urandom(KEY_SIZE), os.urandom(KEY_SIZE), name, kernel, device_memory)


def accelerator(device_memory: int | None = None) -> Accelerator:
    """What is known about this machine's device."""
    text = environment.variable("DEVICE_MEMORY")
    ceiling = device_memory if device_memory is not None or text is None else parse_size(text)
    return Accelerator(stored_profile(), environment.processor_count(), ceiling)


def profile_path() -> Path:
    """Where the profile is kept: it is only about this machine, and can be measured again."""
    return environment.cache_folder() / _PROFILE_NAME


def stored_profile() -> DeviceProfile | None:
    """What was measured last; None if nothing was, or if that cannot be read."""
    try:
        return DeviceProfile.of_fields(msgspec.json.decode(profile_path().read_bytes()))
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def store_profile(profile: DeviceProfile) -> Path:
    """Keep a profile."""
    path = profile_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_suffix(f".{os.getpid()}")
    new.write_bytes(msgspec.json.encode(profile.as_fields()))
    new.replace(path)
    return path
