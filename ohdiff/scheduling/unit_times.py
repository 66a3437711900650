"""How long our units take on an accelerator alone: the least that each size took lately, and what to make of it.

LEDBAT (RFC 6817) takes the least delay of the last minutes for that of an idle path. Changed: a least time for each
kind and size of unit, since they differ. Sizes that were never seen are reckoned from their neighbours, and at first
from what was calibrated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2
from typing import Final

from .core import SECOND, US

# A time counts for one to two of these: a device that got slower is found out, one that is shared is not forgotten.
EPOCH_NS: Final = 120 * SECOND
# Buckets to a doubling of the size: within one, time is in proportion to size to 10 %.
_BUCKETS: Final = 4
# What is calibrated is the rate of many large batches: one by itself may take twice as long, and some launches more.
_TIMES: Final = 2
_LAUNCHES_NS: Final = 300 * US
_GUESSED_BYTES_PER_S: Final = 2_000_000_000


@dataclass(frozen=True, slots=True)
class _Least:
    """The least time that units of about one size took, and the size of that unit."""

    took_ns: int
    size_bytes: int

    def scaled(self, size_bytes: int) -> int:
        """The time of another one of about the same size."""
        return max(1, self.took_ns * size_bytes // self.size_bytes)

    def is_quicker(self, other: _Least | None) -> bool:
        """Whether it took less, by the byte."""
        return other is None or self.took_ns * other.size_bytes < other.took_ns * self.size_bytes


class UnitTimes:
    """What units were seen to take.

    Parameters
    ----------
    calibrated : bytes a second by the first word of a unit's kind, up to a colon; for none there is nothing to expect
        of the first unit, and a guess says how large it is.
    """

    def __init__(self, calibrated: Mapping[str, int]) -> None:
        self._calibrated = calibrated
        self._now: dict[tuple[str, int], _Least] = {}
        self._before: dict[tuple[str, int], _Least] = {}
        self._epoch_ns = 0
        self._best_rate = 0

    @property
    def rate_bytes_per_s(self) -> int:
        """The best that was seen; before that what was calibrated."""
        return self._best_rate or max(self._calibrated.values(), default=_GUESSED_BYTES_PER_S)

    def note(self, now_ns: int, kind: str, size_bytes: int, took_ns: int) -> None:
        """A unit ended that was the only one of ours."""
        if now_ns - self._epoch_ns >= EPOCH_NS:
            self._before, self._now = self._now, {}
            self._epoch_ns = now_ns
        key, least = (kind, _bucket(size_bytes)), _Least(max(1, took_ns), size_bytes)
        if least.is_quicker(self._now.get(key)):
            self._now[key] = least
        self._best_rate = max(self._best_rate, size_bytes * SECOND // max(1, took_ns))

    def expected_ns(self, kind: str, size_bytes: int, took_ns: int) -> int:
        """What a unit that took so long would have taken alone on the device."""
        known = [least for each in (self._now, self._before) if (least := each.get((kind, _bucket(size_bytes))))]
        if known:
            return min(least.scaled(size_bytes) for least in known)
        # Nothing of this size was seen: what it took is believed, within what others of its kind make likely.
        return min(took_ns, self._likely_ns(kind, size_bytes, took_ns))

    def size_bytes(self, kind: str, unit_ns: int) -> int:
        """How large a unit of this length is; units grow twofold at most beyond what was seen."""
        known = self._known(kind)
        below = max((each for each in known if each.took_ns <= unit_ns), key=lambda each: each.size_bytes, default=None)
        if below is None:
            above = min(known, key=lambda each: each.size_bytes, default=None)
            return (
                self._first_size(kind, unit_ns)
                if above is None
                else max(1, above.size_bytes * unit_ns // above.took_ns)
            )
        larger = (each for each in known if each.size_bytes > below.size_bytes)
        above = min(larger, key=lambda each: each.size_bytes, default=None)
        if above is None:
            return min(2 * below.size_bytes, below.size_bytes * unit_ns // below.took_ns)
        rise = (above.size_bytes - below.size_bytes) * (unit_ns - below.took_ns)
        return below.size_bytes + rise // max(1, above.took_ns - below.took_ns)

    def _likely_ns(self, kind: str, size_bytes: int, otherwise_ns: int) -> int:
        """By the nearest sizes that were seen, then by what was calibrated; where neither is there, `otherwise_ns`."""
        known = sorted(self._known(kind), key=lambda each: each.size_bytes)
        if not known:
            rate = self._calibrated.get(_place(kind))
            return otherwise_ns if rate is None else _TIMES * size_bytes * SECOND // max(1, rate) + _LAUNCHES_NS
        if size_bytes >= known[-1].size_bytes:
            return known[-1].scaled(size_bytes)
        if len(known) == 1:
            return known[0].scaled(size_bytes) + _LAUNCHES_NS
        above = next(number for number, each in enumerate(known) if each.size_bytes > size_bytes)
        low, high = known[max(0, above - 1)], known[max(1, above)]
        rise_ns = (high.took_ns - low.took_ns) * (size_bytes - low.size_bytes) // (high.size_bytes - low.size_bytes)
        least_ns = known[0].scaled(size_bytes) if size_bytes < known[0].size_bytes else 1
        return max(least_ns, low.took_ns + rise_ns)

    def _first_size(self, kind: str, unit_ns: int) -> int:
        """Of the first unit of its kind: rather too short."""
        rate = self._calibrated.get(_place(kind), _GUESSED_BYTES_PER_S)
        return max(1, rate * unit_ns // (_TIMES * SECOND))

    def _known(self, kind: str) -> list[_Least]:
        found: dict[int, _Least] = {}
        for times in (self._before, self._now):
            for (of, bucket), least in times.items():
                if of == kind and least.is_quicker(found.get(bucket)):
                    found[bucket] = least
        return list(found.values())


def _bucket(size_bytes: int) -> int:
    return int(_BUCKETS * log2(max(1, size_bytes)))


def _place(kind: str) -> str:
    return kind.partition(":")[0]
