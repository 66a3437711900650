"""Restoring without being root: what cannot be done is said once, and everything else is done."""

from __future__ import annotations

import os
import pickle
import shutil
import stat
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.description import Description, describe_folder
from support.sources import build_zoo, random_bytes, write

from ohdiff.errors import TargetError

MiB = 1 << 20
SOMEBODY, GROUP, OTHER_GROUP, FOREIGN_GROUP = 54_001, 54_002, 54_003, 54_004


def as_somebody(work: Callable[[], Any]) -> Any:
    """Run something in a child process that is an ordinary user for good, and a member of two groups."""
    if os.geteuid() != 0:
        pytest.skip("only root may become somebody else")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([OTHER_GROUP])
            os.setgid(GROUP)
            os.setuid(SOMEBODY)
            answer = (work(), "")
        except BaseException:  # noqa: BLE001 - carried to the parent, which fails with it
            answer = (None, traceback.format_exc())
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        result, failure = pickle.load(pipe)
    os.waitpid(child, 0)
    assert not failure, failure
    return result


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory that somebody owns, in a place that everybody can reach."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "home"
        path.mkdir()
        os.chown(path, SOMEBODY, GROUP)
        yield path


@pytest.fixture
def restore(library: Any, new_heard: Callable[[], Any]) -> Callable[..., tuple[Any, ...]]:
    """Restores in a child process; gives the counts, the errors, the notes, and what is in the target then."""
    library.vault.cache = None

    def run(stored: Any, target: Path, **options: Any) -> tuple[Any, ...]:
        def work() -> tuple[Any, ...]:
            heard = new_heard()
            result = library.restore(stored, target, heard, **options)
            errors = [(type(error), error.item, error.message) for error in result.errors]
            result.errors = []
            return result, errors, heard.notes

        return (*as_somebody(work), describe_folder(target))

    return run


def without_owner(entries: dict[bytes, Description]) -> dict[bytes, tuple[object, ...]]:
    return {
        path: (entry.mode, entry.mtime_ns, entry.first_name, entry.target, entry.digest, entry.extents)
        for path, entry in entries.items()
        if not stat.S_ISCHR(entry.mode)
    }


def test_what_an_ordinary_user_cannot_restore_is_said_once(
    library: Any, source: Path, home: Path, restore: Callable[..., tuple[Any, ...]]
) -> None:
    build_zoo(source)
    for number in range(50):
        os.chown(write(source / f"foreign {number}", b"%d" % number), 1000 + number, 1000 + number)
        os.chown(write(source / "foreign folder" / f"{number}"), 1000 + number, 1000 + number)
    write(source / "large", random_bytes(9 * MiB))
    has_device = (source / "device").exists()
    stored = library.vault.store(source)
    _, errors, notes, found = restore(stored, home / "target")
    assert len(notes) == 1
    assert "owner" in notes[0]
    assert (
        errors
        == [(TargetError, str(home / "target" / "device"), f"{home / 'target' / 'device'}: Operation not permitted")]
        * has_device
    )
    expected = without_owner(describe_folder(source))
    mode, *rest = expected[b"/setuid"]
    expected[b"/setuid"] = (stat.S_IFREG | 0o755, *rest)
    assert mode == stat.S_IFREG | 0o4755
    assert without_owner(found) == expected
    assert {(entry.uid, entry.gid) for entry in found.values()} == {(SOMEBODY, GROUP)}
    again, errors, notes, _ = restore(stored, home / "target")
    assert (again.files.restored, again.files.updated, again.files.metadata, again.bytes_written) == (0, 0, 0, 0)
    assert len(notes) == 1


def test_ones_own_files_get_their_groups_and_set_id_bits(
    library: Any, source: Path, home: Path, restore: Callable[..., tuple[Any, ...]]
) -> None:
    owners = {
        "own": (SOMEBODY, GROUP), "own, other group": (SOMEBODY, OTHER_GROUP),
        "own, foreign group": (SOMEBODY, FOREIGN_GROUP), "foreign": (1, OTHER_GROUP),
    }  # fmt: skip
    for name, owner in owners.items():
        for path in (write(source / name, b"1"), write(source / f"large {name}", random_bytes(9 * MiB))):
            os.chown(path, *owner)
            path.chmod(0o6751)
    os.chown(source, SOMEBODY, GROUP)
    stored = library.vault.store(source)
    _, errors, notes, found = restore(stored, home / "target")
    assert errors == []
    assert len(notes) == 1
    expected = {
        "own": (SOMEBODY, GROUP, 0o6751), "own, other group": (SOMEBODY, OTHER_GROUP, 0o6751),
        "own, foreign group": (SOMEBODY, GROUP, 0o4751), "foreign": (SOMEBODY, OTHER_GROUP, 0o2751),
    }  # fmt: skip
    for name, wanted in expected.items():
        for entry in (found[b"/" + name.encode()], found[b"/large " + name.encode()]):
            assert (entry.uid, entry.gid, stat.S_IMODE(entry.mode)) == wanted


def test_nothing_is_said_of_owners_when_all_is_ones_own(
    library: Any, source: Path, home: Path, restore: Callable[..., tuple[Any, ...]]
) -> None:
    write(source / "folder" / "file", b"1")
    for path in (source, source / "folder", source / "folder" / "file"):
        os.chown(path, SOMEBODY, GROUP)
    stored = library.vault.store(source)
    assert restore(stored, home / "target")[1:3] == ([], [])


def test_closed_folders_and_read_only_files_of_ones_own_are_opened_up_and_closed_again(
    library: Any, source: Path, home: Path, restore: Callable[..., tuple[Any, ...]]
) -> None:
    write(source / "closed" / "read-only", b"wanted")
    write(source / "closed" / "large", random_bytes(9 * MiB))
    write(source / "closed" / "inner" / "unreadable", b"wanted")
    modes = {"closed/read-only": 0o444, "closed/large": 0o400, "closed/inner/unreadable": 0, "closed/inner": 0o100,
             "closed": 0o500, "": 0o700}  # fmt: skip
    for name, mode in modes.items():
        (source / name).chmod(mode)
        os.chown(source / name, SOMEBODY, GROUP)
    stored = library.vault.store(source)
    expected = describe_folder(source)
    target = home / "target"
    shutil.copytree(source, target)
    for name, mode in modes.items():
        path = target / name
        path.chmod(0o700)
        if path.is_file():
            write(path, b"on disk")
        else:
            write(path / "extra" / "extra", b"1")
            (path / "extra").chmod(0)
            os.chown(path / "extra", SOMEBODY, GROUP)
        path.chmod(mode)
        os.chown(path, SOMEBODY, GROUP)
    result, errors, notes, found = restore(stored, target, delete=True)
    assert (errors, notes) == ([], [])
    assert found == expected
    assert (result.files.updated, result.directories.deleted) == (3, 3)


def test_what_belongs_to_others_and_cannot_be_written_is_reported_by_entry(
    library: Any, source: Path, home: Path, restore: Callable[..., tuple[Any, ...]]
) -> None:
    write(source / "folder" / "file", b"wanted")
    write(source / "fine", b"wanted")
    stored = library.vault.store(source)
    target = home / "target"
    write(target / "folder" / "file", b"on disk")
    os.chown(target, SOMEBODY, GROUP)
    errors = restore(stored, target)[1]
    assert errors
    assert {kind for kind, _, _ in errors} == {TargetError}
    assert {item for _, item, _ in errors} <= {str(target / "folder"), str(target / "folder" / "file")}
    assert (target / "folder" / "file").read_bytes() == b"on disk"
    assert (target / "fine").read_bytes() == b"wanted"


def test_a_target_that_cannot_be_made_is_refused(
    library: Any, source: Path, home: Path, restore: Callable[..., tuple[Any, ...]]
) -> None:
    stored = library.vault.store(source)
    with pytest.raises(AssertionError, match=r"TargetError.*Permission denied"):
        restore(stored, home.parent / "not ours" / "target")
