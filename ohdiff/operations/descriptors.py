"""How many directories may be held open at a time: a share of the descriptors that this process has left."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Final

_FOLDER: Final = Path("/dev/fd")


def descriptor_share(divisor: int, most: int) -> int:
    """One part of the free descriptors out of `divisor`; at least 1, and no more than `most`."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return most
    return max(1, min(most, (limit - _open_count()) // divisor))


def _open_count() -> int:
    """Descriptors in use; where the system does not tell, the divisor has room for some."""
    try:
        return sum(1 for _ in _FOLDER.iterdir())
    except OSError:
        return 0
