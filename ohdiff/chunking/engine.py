"""The contract of a compute engine (scan, select, hash, features, each over a batch), and the choice of one.

An engine sees bytes, never files: who reads them, and what is done with chunks, is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ohdiff.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

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


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine, and a sentence that says why it was taken."""

    engine: Engine
    reason: str


def select_engine(name: str, kernel: str, rule: ChunkingRule, id_key: bytes) -> EngineChoice:
    """The engine of this name, or the best one for "auto".

    Parameters
    ----------
    name : "auto", "cpu" or "cuda". Any but "auto" is a demand.
    kernel : a kernel of that engine, or "auto". Any but "auto" is a demand.
    rule : the rule to cut by.
    id_key : 32 bytes, the key of chunk ids.

    Raises
    ------
    UsageError
        There is no engine of this name.
    DeviceError
        The engine or the kernel cannot run here.
    """
    if name not in ENGINE_NAMES:
        raise UsageError(f"unknown engine {name}", hint=f"engines are {', '.join(ENGINE_NAMES)}")
    if name == "cuda":
        raise DeviceError("this version of ohdiff has no cuda engine", hint="use --engine cpu or auto", item="cuda")
    # Here, so that the contract can be imported where the native kernels are not.
    from .cpu import CpuEngine

    engine = CpuEngine(rule, id_key, kernel)
    which = "the best that this CPU runs" if kernel == "auto" else "as demanded"
    why = "the only engine of this version" if name == "auto" else "as demanded"
    return EngineChoice(engine, f"engine {engine.name}: {why}; kernel {engine.kernel}: {which}")
