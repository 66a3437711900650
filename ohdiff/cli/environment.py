"""What the environment says: variables, the user's folders, who and where we are."""

from __future__ import annotations

import os
import pwd
import socket
from pathlib import Path

from ohdiff.errors import UsageError


def variable(name: str) -> str | None:
    """The value of OHDIFF_<name>; unset and empty are the same."""
    return os.environ.get(f"OHDIFF_{name}") or None


def data_folder() -> Path:
    """Where the default repository lies."""
    import platformdirs

    return Path(platformdirs.user_data_path("ohdiff"))


def config_folder() -> Path:
    """Where the default repository's key file lies."""
    import platformdirs

    return Path(platformdirs.user_config_path("ohdiff"))


def cache_folder() -> Path:
    """Where rebuildable copies of indexes lie."""
    named = variable("CACHE_DIR")
    if named is not None:
        return Path(named)
    import platformdirs

    return Path(platformdirs.user_cache_path("ohdiff"))


def host_name() -> str:
    """The name that snapshots of this machine carry."""
    return variable("HOST") or socket.gethostname()


def user_name() -> str:
    """The name of the user who runs this, or the number of one without a name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def updates_per_second() -> float | None:
    """How often progress is shown, if the user says so."""
    text = variable("PROGRESS_FPS")
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 60:
        raise UsageError(f"OHDIFF_PROGRESS_FPS is {text!r}", hint="set it to a number above 0, up to 60")
    return value


def processor_count() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_debugging() -> bool:
    """Whether tracebacks are wanted."""
    return variable("DEBUG") is not None
