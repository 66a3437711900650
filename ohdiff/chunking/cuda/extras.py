"""What is installed beside CuPy, and whether it can be used here: nvCOMP, and kvikio with GPUDirect Storage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ohdiff.errors import DeviceError

from .direct import check_storage, load_kvikio
from .nvcomp import Nvcomp


@dataclass(frozen=True, slots=True)
class Extra:
    """An optional library: `state` is its version, or why it cannot be used; `is_usable` says which."""

    name: str
    is_usable: bool
    state: str


def find_extras() -> list[Extra]:
    """What there is; nothing is computed with it."""
    return [_found("nvCOMP", lambda: Nvcomp().version), _found("kvikio", _kvikio_version)]


def _found(name: str, version: Callable[[], str]) -> Extra:
    try:
        return Extra(name, True, version())
    except DeviceError as error:
        return Extra(name, False, error.message)


def _kvikio_version() -> str:
    kvikio = load_kvikio()
    check_storage()
    return str(kvikio.__version__)
