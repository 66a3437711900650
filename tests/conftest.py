"""Fixtures for all tests: a repository in memory, and one in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support.vault import Vault

from ohdiff.storage import LocalStorage, MemoryStorage

# No test is judged by its time: a busy machine must not fail one.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(autouse=True, scope="session")
def runtime_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Leases and hints of tests are none of the user's: they meet in a folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    """A repository in memory with a local index."""
    return Vault(MemoryStorage("test"), tmp_path / "cache").create()


@pytest.fixture
def local_vault(tmp_path: Path) -> Vault:
    """A repository in a folder with a local index."""
    return Vault(LocalStorage.create(tmp_path / "repository"), tmp_path / "cache").create()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An empty folder to be filled and stored."""
    path = tmp_path / "source"
    path.mkdir()
    return path
