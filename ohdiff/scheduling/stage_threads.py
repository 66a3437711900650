"""How many threads each stage of the CPU pipeline gets: in proportion to the square root of its work.

Ditto (SIGCOMM'23) shows this for sequential stages whose time is work over threads plus a constant: it makes the sum of
the times least. Changed: threads are whole, every stage has one, and what is left goes where it saves most time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt


def split_threads(work_ns: Sequence[int], threads: int) -> tuple[int, ...]:
    """Threads for each stage.

    Parameters
    ----------
    work_ns : time of each stage with one thread.
    threads : in all; fewer than there are stages counts as one each.
    """
    if not work_ns:
        return ()
    roots = [isqrt(max(1, work)) for work in work_ns]
    given = [max(1, threads * root // sum(roots)) for root in roots]
    while sum(given) < threads:
        saved = [work // count - work // (count + 1) for work, count in zip(work_ns, given, strict=True)]
        given[saved.index(max(saved))] += 1
    while sum(given) > max(threads, len(given)):
        lost = [
            work // (count - 1) - work // count if count > 1 else -1 for work, count in zip(work_ns, given, strict=True)
        ]
        given[lost.index(min(loss for loss in lost if loss >= 0))] -= 1
    return tuple(given)
