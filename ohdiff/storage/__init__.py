"""Storage: named bytes under a repository. The contract, and its local and in-memory implementations."""

from .contract import Buffer, ObjectExistsError, ObjectInfo, ObjectWriter, Storage
from .local import LocalStorage
from .memory import MemoryStorage
from .names import FOLDERS
from .urls import open_storage

__all__ = [
    "FOLDERS",
    "Buffer",
    "LocalStorage",
    "MemoryStorage",
    "ObjectExistsError",
    "ObjectInfo",
    "ObjectWriter",
    "Storage",
    "open_storage",
]
