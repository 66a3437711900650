"""Running an init again that was interrupted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from ohdiff import errors
from ohdiff.storage.local import LocalStorage

Run = Callable[..., Result]


@pytest.mark.parametrize("is_same_password", [True, False])
def test_an_init_that_was_interrupted_after_its_key_can_be_run_again(
    run: Run, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_same_password: bool
) -> None:
    place = tmp_path / "repository"
    monkeypatch.setenv("OHDIFF_PASSWORD", "first")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "write_new", stop)
        assert run("-r", place, "init").exit_code == errors.EXIT_INTERRUPTED
    (left,) = (place / "keys").iterdir()
    assert not (place / "config").exists()
    if not is_same_password:
        monkeypatch.setenv("OHDIFF_PASSWORD", "second")
    assert run("-r", place, "init").exit_code == errors.EXIT_DONE
    assert left in (place / "keys").iterdir()
    assert run("-r", place, "snapshot", source).exit_code == errors.EXIT_DONE
    assert run("-r", place, "check").exit_code == errors.EXIT_DONE
    monkeypatch.setenv("OHDIFF_PASSWORD", "third")
    assert run("-r", place, "snapshots").exit_code == errors.EXIT_WRONG_KEY


def test_a_repository_that_lost_its_config_is_not_made_anew(
    run: Run, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "repository"
    monkeypatch.setenv("OHDIFF_PASSWORD", "first")
    run("-r", place, "init")
    run("-r", place, "snapshot", source)
    (place / "config").rename(tmp_path / "config")
    result = run("-r", place, "init")
    assert result.exit_code == errors.EXIT_FAILED
    assert "no config" in result.stderr
    (tmp_path / "config").rename(place / "config")
    assert run("-r", place, "snapshots").exit_code == errors.EXIT_DONE
