"""ohdiff: differential backup. What is exported here is imported when it is first used, so importing costs nothing."""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

# What each name is exported from; __init__.pyi says the same to type checkers.
_PLACES = {
    "RestoredTensor": "operations.tensors_restore",
    "TensorsResult": "operations.tensors",
    "restore_tensors": "operations.tensors_restore",
    "snapshot_tensors": "operations.tensors",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'ohdiff' has no attribute {name!r}")
    return getattr(import_module(f".{_PLACES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
