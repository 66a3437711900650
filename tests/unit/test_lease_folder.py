"""Where processes meet: only a folder and files of this user alone, on a file system of this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ohdiff.errors import DeviceError
from ohdiff.scheduling.runtime_folder import check_device_name, file_system_of, open_folder, open_shared

MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
28 27 0:24 / /run rw,nosuid shared:5 - tmpfs tmpfs rw,mode=755
31 27 0:40 / /home rw shared:7 master:1 - nfs4 server:/home rw,vers=4.2
32 31 0:41 / /home/local rw - xfs /dev/vdb rw
33 27 0:42 / /mnt/with\\040space rw - fuse.sshfs far:/ rw
34 27 0:43 / /srv rw - ext4 /dev/vdc rw
35 34 0:44 / /srv rw - 9p host rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/run", "tmpfs"),
        ("/run/user/1000/ohdiff", "tmpfs"),
        ("/runs", "ext4"),
        ("/home/me/run", "nfs4"),
        ("/home/local/run", "xfs"),
        ("/home/locals", "nfs4"),
        ("/mnt/with space/x", "fuse.sshfs"),
        ("/srv/x", "9p"),
    ],
)
def test_the_nearest_and_latest_mount_holds_a_path(path: str, kind: str) -> None:
    assert file_system_of(path, MOUNTS) == kind


def test_nothing_is_known_without_mounts() -> None:
    assert file_system_of("/run", "") == ""
    assert file_system_of("/run", "rubbish\n - x\n") == ""


def test_the_folder_is_made_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        os.close(open_folder(tmp_path / "runtime"))
        fd = open_folder(tmp_path / "runtime")
        os.close(open_shared(fd, "cpu.lock"))
        os.close(fd)
    finally:
        os.umask(before)
    assert (tmp_path / "runtime").stat().st_mode & 0o7777 == 0o700
    assert (tmp_path / "runtime" / "cpu.lock").stat().st_mode & 0o7777 == 0o600


@pytest.mark.parametrize("kind", ["nfs4", "nfs", "cifs", "fuse.sshfs", "9p", "lustre", "never heard of"])
def test_a_folder_that_may_lie_elsewhere_is_refused(tmp_path: Path, kind: str) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"27 1 0:1 / / rw - {kind} far:/ rw\n")
    with pytest.raises(DeviceError, match="another machine"):
        open_folder(tmp_path / "runtime", mounts)


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(DeviceError):
        open_folder(tmp_path / "link")


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DeviceError):
        open_folder(tmp_path / "file")


def test_a_missing_parent_is_no_place_to_meet(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="cannot be shared"):
        open_folder(tmp_path / "missing" / "runtime")


@pytest.mark.parametrize("mode", [0o750, 0o705, 0o777])
def test_a_folder_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "runtime").mkdir()
    os.chmod(tmp_path / "runtime", mode)
    with pytest.raises(DeviceError, match="open to other users"):
        open_folder(tmp_path / "runtime")


def test_another_users_folder_is_refused(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        path = tmp_path / "theirs"
        path.mkdir(mode=0o700)
        os.chown(path, 4711, 4711)
    else:
        path = Path("/usr")
    with pytest.raises(DeviceError, match="another user"):
        open_folder(path)


@pytest.mark.parametrize("what", ["link", "hard link", "open file", "folder", "fifo"])
def test_what_is_no_plain_file_of_our_own_is_refused(tmp_path: Path, what: str) -> None:
    fd = open_folder(tmp_path / "runtime")
    path, other = tmp_path / "runtime" / "cpu.page", tmp_path / "precious"
    other.write_text("precious")
    other.chmod(0o600)
    match what:
        case "link":
            path.symlink_to(other)
        case "hard link":
            path.hardlink_to(other)
        case "open file":
            path.touch()
            path.chmod(0o644)
        case "folder":
            path.mkdir()
        case "fifo":
            os.mkfifo(path, 0o600)
    with pytest.raises(DeviceError):
        open_shared(fd, "cpu.page")
    os.close(fd)
    assert other.read_text() == "precious"


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "x" * 65, "näh", "a b"])
def test_a_name_that_is_no_files_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        check_device_name(name)


def test_uuids_are_names() -> None:
    assert check_device_name("GPU-5e0a8f1c-8a5f-4f64-8d4f-c0ffee000000").startswith("GPU-")
