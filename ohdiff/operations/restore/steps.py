"""The order in which the blocks of a batch are decoded: each once, and what stands on it right after it.

A block of differences needs some chunks of other blocks. These are taken out when those are decoded, whether or not
anything else is needed of them, so that nothing is decoded twice within a batch, and whole blocks are never kept.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from blake3 import blake3

from ohdiff.repository.index import ChunkIndex
from ohdiff.repository.index_segment import BlockLocation, ChunkLocation
from ohdiff.repository.lost_bases import split_prefixes
from ohdiff_format.envelope import Buffer
from ohdiff_format.limits import BASE_SIZE_BYTES_MAX, ID_PREFIX_SIZE

from .work import RestoreRun
from .write import Bucket, Outcome, Place, take_bucket, verified_places

# What is kept for blocks that wait for a second one. Of two versions of a source tree 7 MB were, of a database 12 MB.
GATHERED_SIZE_BYTES_MAX: Final = 24 << 20
# One job goes on to what stands on its block up to this; more is shared out.
_JOB_SIZE_BYTES_MAX: Final = 24 << 20
# A base chunk takes about 200 bytes while it is planned for.
_BASES_PER_PLAN: Final = 16_384


_block_of: Final = attrgetter("block")


class Part(NamedTuple):
    """Bytes of a decoded block that another stands on: where they lie, and where they go in its base."""

    start: int
    size: int
    position: int


@dataclass(slots=True, eq=False)
class Step:
    """One block to decode.

    Attributes
    ----------
    bucket : what is needed of it besides.
    users : the steps that stand on it, with what they need of it.
    bases : place in it -> 16 bytes of its id, of each chunk that others stand on.
    waiting : blocks that it stands on that have not been decoded.
    is_alone : what it stands on is not gathered, but loaded when its turn comes.
    base_size : of all that it stands on.
    sole : the one block that it stands on, and what it needs of that.
    gathered : what it stands on, as far as it is there, where that is several blocks.
    """

    bucket: Bucket
    location: BlockLocation | None
    users: list[tuple[Step, list[Part]]] = field(default_factory=list)
    bases: dict[Place, bytes] = field(default_factory=dict)
    waiting: int = 0
    is_alone: bool = False
    base_size: int = 0
    sole: tuple[memoryview, list[Part]] | None = None
    gathered: bytearray | None = None


class Steps:
    """The steps of one batch; after it is built, safe for use from several threads."""

    def __init__(self, index: ChunkIndex, buckets: Iterable[Bucket]) -> None:
        self._index = index
        self._steps: dict[BlockLocation | None, Step] = {
            bucket.location: Step(bucket, bucket.location) for bucket in buckets
        }
        self._gathered_size = 0
        self._lock = threading.Lock()
        self._plan()

    def take_first(self) -> list[Step]:
        """Those that wait for nothing, in the order of storage; each of the others is held by what it waits for."""
        steps, self._steps = self._steps, {}
        return sorted((step for step in steps.values() if not step.waiting), key=_place)

    def take_base(self, step: Step) -> Buffer | None:
        """What a step stands on, if that was gathered; it is not kept any longer."""
        sole, gathered = step.sole, step.gathered
        self._forget(step)
        if sole is None:
            return gathered
        plain, parts = sole
        pieces = [plain[part.start : part.start + part.size] for part in parts]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def settle(self, step: Step, plain: Buffer | None) -> list[Step]:
        """Hand a decoded block to those that stand on it; returns which of them wait for nothing more.

        Parameters
        ----------
        plain : its bytes, of which all chunks that others stand on were checked; None has them load it themselves.
        """
        view = None if plain is None else memoryview(plain)
        ready = []
        for user, parts in step.users:
            self._give(user, parts, view)
            with self._lock:
                user.waiting -= 1
                if user.waiting == 0:
                    ready.append(user)
        return ready

    def _plan(self) -> None:
        due = [step for step in self._steps.values() if _prefixes(step)]
        while due:
            count = 0
            taken: list[Step] = []
            while due and (not taken or count < _BASES_PER_PLAN):
                taken.append(due.pop())
                count += len(_prefixes(taken[-1])) // ID_PREFIX_SIZE
            names = [name for step in taken for name in split_prefixes(_prefixes(step))]
            places = self._index.find(names)
            first = 0
            for step in taken:
                end = first + len(_prefixes(step)) // ID_PREFIX_SIZE
                due += self._link(step, places[first:end])
                first = end

    def _link(self, step: Step, places: Sequence[ChunkLocation | None]) -> list[Step]:
        """Have a step wait for the blocks that it stands on; returns those that are new and stand on others."""
        assert step.location is not None, "it stands on something"
        known = [place for place in places if place is not None]
        step.base_size = sum([place.size for place in known])
        is_lost = len(known) < len(places) or step.base_size > BASE_SIZE_BYTES_MAX
        # Neighbours mostly lie in the same block, whose ten fields are hashed for every look-up.
        blocks = [block for block, _ in groupby(known, _block_of)]
        # Chains become shorter with every step down, else they might not end.
        if is_lost or any(block.depth >= step.location.depth for block in blocks):
            step.is_alone = True
            return []
        new = []
        needed: dict[BlockLocation, list[Part]] = {}
        names = iter(split_prefixes(step.location.base_prefixes))
        position = 0
        for block, chunks in groupby(known, _block_of):
            below = self._steps.get(block)
            if below is None:
                below = self._steps[block] = Step(Bucket(block), block)
                if block.base_prefixes:
                    new.append(below)
            parts = needed.get(block)
            if parts is None:
                parts = needed[block] = []
                below.users.append((step, parts))
            for (_, offset, size), name in zip(chunks, names, strict=False):
                below.bases[(offset, size)] = name
                _add_part(parts, offset, size, position)
                position += size
        step.waiting = len(needed)
        return new

    def _give(self, user: Step, parts: list[Part], plain: memoryview | None) -> None:
        if user.is_alone:
            return
        if plain is None:
            self._leave_alone(user)
        elif user.base_size == sum(part.size for part in parts):
            user.sole = (plain, parts)
        else:
            gathered = self._room_for(user)
            if gathered is not None:
                for start, size, position in parts:
                    gathered[position : position + size] = plain[start : start + size]

    def _room_for(self, user: Step) -> bytearray | None:
        """Where what a step stands on is gathered; None, now and later, if that would be too much."""
        with self._lock:
            if user.gathered is None and not user.is_alone:
                if self._gathered_size + user.base_size > GATHERED_SIZE_BYTES_MAX:
                    user.is_alone = True
                else:
                    user.gathered = bytearray(user.base_size)
                    self._gathered_size += user.base_size
            return user.gathered

    def _leave_alone(self, user: Step) -> None:
        user.is_alone = True
        self._forget(user)

    def _forget(self, step: Step) -> None:
        with self._lock:
            if step.gathered is not None:
                self._gathered_size -= step.base_size
                step.gathered = None
            step.sole = None


class Done(NamedTuple):
    """What became of a job: each bucket's outcome, and steps that wait for nothing any more."""

    outcomes: list[tuple[Bucket, Outcome]]
    ready: list[Step]


def take_step(run: RestoreRun, steps: Steps, first: Step) -> Done:
    """Decode a block and those that stand on it, and write everything that is needed of them.

    Storage that fails as such is raised.
    """
    outcomes = []
    ready = [first]
    size = 0
    while ready and size < _JOB_SIZE_BYTES_MAX:
        step = ready.pop()
        outcome, plain = take_bucket(run, step.bucket, steps.take_base(step))
        outcomes.append((step.bucket, outcome))
        size += len(plain or b"")
        # What others stand on is checked before they do: they say what is wrong with it, in words of their own.
        is_sound = plain is not None and _are_sound(run.id_key, step, memoryview(plain))
        ready += steps.settle(step, plain if is_sound else None)
    return Done(outcomes, ready)


def _are_sound(id_key: bytes, step: Step, plain: memoryview) -> bool:
    """Whether all chunks that others stand on are what they should be; what was written out of the block is."""
    if not step.bases:
        return True
    verified = verified_places(step.bucket)
    hasher = blake3(key=id_key)
    for place, name in step.bases.items():
        if verified.get(place) == name:
            continue
        start, size = place
        if hasher.update(plain[start : start + size]).digest(ID_PREFIX_SIZE) != name:
            return False
        hasher.reset()
    return True


def _prefixes(step: Step) -> bytes:
    return b"" if step.location is None else step.location.base_prefixes


def _place(step: Step) -> tuple[bytes, int]:
    return (b"", 0) if step.location is None else (step.location.pack_id, step.location.number)


def _add_part(parts: list[Part], offset: int, size: int, position: int) -> None:
    """Chunks that follow each other on both sides make one part."""
    if parts:
        start, size_before, at = parts[-1]
        if start + size_before == offset and at + size_before == position:
            parts[-1] = Part(start, size_before + size, at)
            return
    parts.append(Part(offset, size, position))
