"""What the environment does to a device that is shared: an MPS daemon that runs is used with manners, none is started.

CUDA reads these variables when a process uses it first, so they must be set before. One that the user has set stays.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ohdiff.scheduling.core import JobClass

_PIPES: Final = "CUDA_MPS_PIPE_DIRECTORY"
_PIPES_DEFAULT: Final = "/tmp/nvidia-mps"  # noqa: S108 - NVIDIA's own place
_DAEMON: Final = "nvidia-cuda-mps-control.pid"
_PRIORITY: Final = "CUDA_MPS_CLIENT_PRIORITY"
_BELOW_NORMAL: Final = "1"
_PERCENTAGE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
# The rest is the others' at any time: under MPS our kernels run beside theirs, not in turns with them.
_SCAVENGING_PERCENTAGE: Final = "25"


@dataclass(frozen=True, slots=True)
class Mps:
    """The daemon that is there: where it is talked to, and its process."""

    folder: Path
    process_id: int


def find_mps() -> Mps | None:
    """The MPS control daemon that CUDA would talk to, if one runs: its file stays when it was killed."""
    folder = Path(os.environ.get(_PIPES) or _PIPES_DEFAULT)
    with suppress(OSError, ValueError):
        process_id = int((folder / _DAEMON).read_text(encoding="ascii"))
        if process_id > 0 and _is_process(process_id):
            return Mps(folder, process_id)
    return None


def use_mps(job_class: JobClass) -> str | None:
    """Set what makes us a client that comes second; what was done, in words, None where no daemon runs."""
    if find_mps() is None:
        return None
    wanted = {_PRIORITY: _BELOW_NORMAL}
    if job_class is JobClass.SCAVENGE:
        wanted[_PERCENTAGE] = _SCAVENGING_PERCENTAGE
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
    said = ", ".join(f"{name}={os.environ[name]}" for name in wanted)
    return f"the device is shared by an MPS daemon: {said}"


def _is_process(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
