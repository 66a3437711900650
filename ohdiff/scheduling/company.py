"""Whether others use the cores beside us, and what our threads do then: take breaks, and keep to the cores left idle.

What is looked at are the figures of `HostSignals`: how much of the cores others use, and how long somebody waited for a
core that we had. Both are noisy over a tenth of a second, and every machine has small jobs of its own, so a second
counts, and company stays for ten: requests that come now and then find our threads with their breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ohdiff.breaks import NO_BREAKS, BreakTimes, take_breaks

from .core import SECOND, Activity, CoRunner, Host
from .cores import OwnCores

# Of one core that others use, and of the time that somebody waits for one: with less, nobody is served by breaks.
_USED_MILLI: Final = 80
_WAITED_MILLI: Final = 10
_MEMORY_NS: Final = SECOND
_STAYS_NS: Final = 10 * SECOND
# Before that nothing is known, and others are taken to be there.
_UNKNOWN_NS: Final = 3 * SECOND // 10
# A core is ours to use when others use less than a tenth of it; more are taken a second after the last change.
_CORE_USED_MILLI: Final = 100
_GROW_NS: Final = SECOND
BREAKS: Final = BreakTimes(work_us=250, short_us=20, long_us=10000)


class Company:
    """Follows the figures, and has the threads of this process behave while others are at work.

    Parameters
    ----------
    cores : what we run on.
    take : told which breaks from now on.
    """

    def __init__(self, cores: OwnCores, take: Callable[[BreakTimes], None] = take_breaks) -> None:
        self._cores = cores
        self._take = take
        self._cores_now: int | None = None
        self._cores_since_ns = 0
        self._used_milli = self._waited_milli = 0.0
        self._first_ns: int | None = None
        self._seen_ns = 0
        self._until_ns = 0
        self.is_there = False

    def look(self, now_ns: int, host: Host, co_runners: Iterable[CoRunner] = ()) -> None:
        """Take in the figures of now."""
        if self._first_ns is None:
            self._first_ns = now_ns
            self._until_ns = now_ns + _UNKNOWN_NS
        elif now_ns > self._seen_ns:
            # The mean of what was seen so far, and later that of the last second or so.
            weight = min(1.0, (now_ns - self._seen_ns) / min(_MEMORY_NS, now_ns - self._first_ns))
            used_milli = 1000 * host.cores - host.cores_idle_milli
            self._used_milli += weight * (used_milli - self._used_milli)
            self._waited_milli += weight * (host.cpu_pressure_milli - self._waited_milli)
        self._seen_ns = now_ns
        is_told = any(each.activity is Activity.BUSY for each in co_runners)
        is_known = now_ns - self._first_ns >= _UNKNOWN_NS
        if is_told or (is_known and (self._used_milli > _USED_MILLI or self._waited_milli > _WAITED_MILLI)):
            self._until_ns = now_ns + _STAYS_NS
        if self.is_there != (now_ns < self._until_ns):
            self.is_there = not self.is_there
            self._take(BREAKS if self.is_there else NO_BREAKS)
        if self.is_there:
            self._keep_to_cores(now_ns, host if is_known else None)
        else:
            self._use_all_cores()

    def leave(self) -> None:
        """We are done, or need not behave any more."""
        if self.is_there:
            self.is_there = False
            self._take(NO_BREAKS)
        self._use_all_cores()

    def _keep_to_cores(self, now_ns: int, host: Host | None) -> None:
        """As many as others leave idle, one while that is not known."""
        count = 1 if host is None else max(1, min(host.cores, (host.cores_idle_milli + _CORE_USED_MILLI) // 1000))
        now = self._cores_now
        if now is None or count < now or (count > now and now_ns - self._cores_since_ns >= _GROW_NS):
            self._cores_now, self._cores_since_ns = count, now_ns
            self._cores.use(count)

    def _use_all_cores(self) -> None:
        if self._cores_now is not None:
            self._cores_now = None
            self._cores.use_all()
