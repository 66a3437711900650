"""The contract of a compute engine (scan, select, hash, features, each over a batch), and the choice of one.

An engine sees bytes, never files: who reads them, and what is done with chunks, is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ohdiff.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .cuda.engine import CudaEngine
    from .cuda.placement import DeviceProfile
    from .rule import ChunkingRule

ENGINE_NAMES = ("auto", "cpu", "cuda")
ID_SIZE = 32
FEATURE_COUNT = 12


class Engine(Protocol):
    """Cuts bytes into chunks by a rule, and names and describes the chunks.

    Every engine and kernel gives the same bytes for the same input. `data` is a contiguous buffer of bytes in host
    memory (bytes, bytearray, memoryview, mmap), owned by the caller, read without a copy, and not kept after the
    call; it must not change or lose its pages meanwhile. Results are new `bytes` in host memory, little-endian:
    `memoryview(cuts).cast("Q")` reads them. One engine may be used by many threads at once; the interpreter's lock is
    released while bytes are worked on.

    Attributes
    ----------
    name : "cpu", "cuda", ...
    kernel : which of its implementations the engine runs, for people and for reports.
    rule : the rule that it cuts by.
    """

    @property
    def name(self) -> str: ...

    @property
    def kernel(self) -> str: ...

    @property
    def rule(self) -> ChunkingRule: ...

    def cut_segments(self, data: Buffer, segment_ends: Buffer | Sequence[int]) -> tuple[bytes, bytes]:
        """Cut many whole files that lie back to back.

        Parameters
        ----------
        data : the files' bytes; what lies beyond the last end is not looked at.
        segment_ends : uint64[files], the exclusive end of each file in `data`, ascending; as a buffer or as integers.

        Returns
        -------
        cuts : uint64[chunks], exclusive ends in `data`, all files in order.
        cut_counts : uint32[files], chunks of each file; 0 for an empty one.

        Raises
        ------
        ValueError
            Ends do not ascend or lie beyond the data.
        """

    def cut_stream(self, data: Buffer, is_last: bool) -> bytes:
        """Cut one file that arrives piece by piece.

        Parameters
        ----------
        data : begins at a chunk start of the file.
        is_last : the file ends where `data` ends.

        Returns
        -------
        cuts : uint64[chunks], the exclusive ends that are final. What follows the last one (nothing when is_last,
            else less than max_size bytes) belongs to the front of the next call's data. However a file is split into
            pieces, its cuts are the same. What is handed in again is scanned again: pieces of several max_size are
            cheap, pieces below it are not.
        """

    def hash_chunks(self, data: Buffer, cuts: Buffer) -> bytes:
        """The ids of adjoining chunks: keyed BLAKE3 of their bytes.

        Parameters
        ----------
        cuts : uint64[chunks], exclusive ends in `data`, ascending; the first chunk starts at 0.

        Returns
        -------
        ids : uint8[chunks * 32].

        Raises
        ------
        ValueError
            Cuts do not ascend or lie beyond the data.
        """

    def features(self, data: Buffer, cuts: Buffer) -> bytes:
        """Resemblance features of adjoining chunks (content-defined sampling as in Odess, ACM TOS 2023).

        Parameters
        ----------
        cuts : as for `hash_chunks`.

        Returns
        -------
        features : uint32[chunks * 12]; all 0 for a chunk without a sample.

        Raises
        ------
        ValueError
            Cuts do not ascend or lie beyond the data.
        """

    def candidates(self, data: Buffer) -> tuple[bytes, bytes]:
        """Every position of `data`, as one file, that the loose threshold lets pass: to compare engines.

        Returns
        -------
        positions : uint64[candidates], ascending.
        hashes : uint32[candidates].
        """


@runtime_checkable
class SinglePassEngine(Protocol):
    """An engine for which cutting and hashing together costs less than one after the other."""

    def cut_and_hash_segments(
        self, data: Buffer, segment_ends: Buffer | Sequence[int]
    ) -> tuple[bytes, bytes, bytes]: ...
    def cut_and_hash_stream(self, data: Buffer, is_last: bool) -> tuple[bytes, bytes]: ...


def cut_and_hash_segments(
    engine: Engine, data: Buffer, segment_ends: Buffer | Sequence[int]
) -> tuple[bytes, bytes, bytes]:
    """`Engine.cut_segments` and `Engine.hash_chunks` of the result, in one pass where the engine can: and the ids."""
    if isinstance(engine, SinglePassEngine):
        return engine.cut_and_hash_segments(data, segment_ends)
    cuts, counts = engine.cut_segments(data, segment_ends)
    return cuts, counts, engine.hash_chunks(data, cuts)


def cut_and_hash_stream(engine: Engine, data: Buffer, is_last: bool) -> tuple[bytes, bytes]:
    """`Engine.cut_stream` and `Engine.hash_chunks` of the result, in one pass where the engine can: cuts and ids."""
    if isinstance(engine, SinglePassEngine):
        return engine.cut_and_hash_stream(data, is_last)
    cuts = engine.cut_stream(data, is_last)
    return cuts, engine.hash_chunks(data, cuts)


@dataclass(frozen=True, slots=True)
class Accelerator:
    """What is known about a device before it is opened, and how much of it may be used.

    Parameters
    ----------
    profile : measured rates; without them "auto" computes on the CPU.
    threads : of the CPU that would cut and hash instead.
    memory_max_bytes : ceiling of device memory; None for a quarter of what is free.
    has_resident_data : what is to be hashed lies on the device already, so that "auto" needs no profile to go there.
    """

    profile: DeviceProfile | None = None
    threads: int = 1
    memory_max_bytes: int | None = None
    has_resident_data: bool = False


class EngineChoice:
    """An engine, and why it was taken.

    Attributes
    ----------
    engine : the engine.
    """

    def __init__(self, engine: Engine, reason: str) -> None:
        self.engine = engine
        self._reason = reason

    @property
    def reason(self) -> str:
        """A sentence: why this engine was taken, and what was not as usual so far."""
        notes: Sequence[str] = getattr(self.engine, "notes", ())
        return "; ".join([self._reason, *notes])


def select_engine(
    name: str, kernel: str, rule: ChunkingRule, id_key: bytes, accelerator: Accelerator | None = None
) -> EngineChoice:
    """The engine of this name, or the best one for "auto".

    Parameters
    ----------
    name : "auto", "cpu" or "cuda". Any but "auto" is a demand.
    kernel : a kernel of that engine, or "auto". Any but "auto" is a demand; one of the CPU's demands that engine.
    rule : the rule to cut by.
    id_key : 32 bytes, the key of chunk ids.
    accelerator : what is known about a device.

    Raises
    ------
    UsageError
        There is no engine of this name.
    DeviceError
        The engine or the kernel cannot run here.
    """
    accelerator = accelerator or Accelerator()
    if name not in ENGINE_NAMES:
        raise UsageError(f"unknown engine {name}", hint=f"engines are {', '.join(ENGINE_NAMES)}")
    if name == "cuda":
        engine = _cuda_engine(kernel, rule, id_key, accelerator)
        return EngineChoice(engine, f"engine cuda: as demanded; {_device_of(engine)}")
    if name == "cpu" or kernel != "auto":
        return _cpu_choice(kernel, rule, id_key, "as demanded" if name == "cpu" else "the kernel was demanded")
    return _best_choice(rule, id_key, accelerator)


def _best_choice(rule: ChunkingRule, id_key: bytes, accelerator: Accelerator) -> EngineChoice:
    # Here and below, so that the contract can be imported where the native kernels are not.
    from .cuda.placement import is_of, judge

    judgement = judge(accelerator.profile, threads=accelerator.threads)
    if not judgement.pays and not accelerator.has_resident_data:
        return _cpu_choice("auto", rule, id_key, judgement.reason)
    try:
        engine = _cuda_engine("auto", rule, id_key, accelerator)
    except DeviceError as error:
        return _cpu_choice("auto", rule, id_key, f"no CUDA device can be used: {error.message}")
    if accelerator.has_resident_data:
        return EngineChoice(engine, f"engine cuda: the data lies there; {_device_of(engine)}")
    described = engine.device.description
    assert accelerator.profile is not None, "only a profile makes a device pay"
    if not is_of(accelerator.profile, described.name, described.driver_version):
        why = "the profile is of another device or driver (ohdiff calibrate makes a new one)"
        return _cpu_choice("auto", rule, id_key, why)
    return EngineChoice(engine, f"engine cuda: {judgement.reason}; {_device_of(engine)}")


def _cpu_choice(kernel: str, rule: ChunkingRule, id_key: bytes, why: str) -> EngineChoice:
    from .cpu import CpuEngine

    engine = CpuEngine(rule, id_key, kernel)
    which = "the best that this CPU runs" if kernel == "auto" else "as demanded"
    return EngineChoice(engine, f"engine {engine.name}: {why}; kernel {engine.kernel}: {which}")


def _cuda_engine(kernel: str, rule: ChunkingRule, id_key: bytes, accelerator: Accelerator) -> CudaEngine:
    """An engine that has been compared with the CPU's; DeviceError if there is none to be had."""
    from .cuda.engine import FEATURES_BYTES_MIN, CudaEngine, CudaOptions
    from .cuda.self_check import first_disagreement

    engine = CudaEngine(rule, id_key, CudaOptions(memory_max_bytes=accelerator.memory_max_bytes))
    if kernel not in ("auto", engine.kernel):
        raise DeviceError(f"kernel {kernel} is not the device's", hint=f"it runs {engine.kernel}", item=kernel)
    disagreement = first_disagreement(engine, engine.cpu)
    device = engine.device.description.name
    if disagreement is not None:
        raise DeviceError(
            f"{device} is not used: {disagreement} are not what the CPU finds",
            hint="check the device and its driver; --engine cpu does without",
            item="cuda",
        )
    if not engine.is_on_device:
        raise DeviceError(f"{device} cannot be used: {engine.notes[-1]}", item="cuda")
    engine.features_bytes_min = FEATURES_BYTES_MIN
    return engine


def _device_of(engine: CudaEngine) -> str:
    described = engine.device.description
    return f"{described.name}, {described.architecture}, checked against the CPU"
