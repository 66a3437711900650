"""The same results where the kernel or a sandbox refuses the newest system calls, in a process that really does so."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

# fchmodat2 (Linux 6.6), setxattrat, getxattrat, listxattrat, removexattrat (6.13).
NEW_CALLS = [452, 463, 464, 465, 466]

REFUSE = """
import ctypes, struct

def refuse(calls, error):
    load, jump_if_equal, answer, allow, deny = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000
    program = [(load, 0, 0, 0)]
    program += [(jump_if_equal, len(calls) - position, 0, call) for position, call in enumerate(calls)]
    program += [(answer, 0, 0, allow), (answer, 0, 0, deny | error)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    unset = ctypes.c_ulong(0)
    assert libc.prctl(38, ctypes.c_ulong(1), unset, unset, unset) == 0, ctypes.get_errno()
    assert libc.prctl(22, ctypes.c_ulong(2), header, unset, unset) == 0, ctypes.get_errno()
"""

SCRIPT = """
import json, sys
from ohdiff import _posix
from ohdiff.filesystem import DirectoryHandle, read_entries

refuse(json.loads(sys.argv[2]), int(sys.argv[3]))
directory = DirectoryHandle.open_root(sys.argv[1])
refused = _posix.replace_xattrs(directory.fd, b"file", [(b"user.new", b"1")])
_posix.set_mode(directory.fd, b"file", 0o2640)
try:
    _posix.set_mode(directory.fd, b"link", 0o777)
    link_error = 0
except OSError as error:
    link_error = error.errno
_, demanded = _posix.read_xattrs(directory.fd, [b"file"], "at")
found = read_entries(directory, [b"file", b"link"], with_xattrs=True)
xattrs = [[name.decode(), value.decode()] for name, value in found.xattrs.get(0, [])]
demanded = [error for _, error, _ in demanded]
rows = sorted(found.xattrs)
print(json.dumps([refused, link_error, demanded, found.modes[0], xattrs, len(found.errors), rows]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux refuses system calls by filter")
@pytest.mark.parametrize("answer", [errno.ENOSYS, errno.EPERM])
@pytest.mark.usefixtures("user_xattrs")
def test_modes_and_xattrs_are_set_and_read_without_the_new_calls(place: Path, answer: int) -> None:
    (place / "file").touch()
    os.setxattr(place / "file", "user.old", b"0")
    (place / "link").symlink_to("file")
    result = subprocess.run(
        [sys.executable, "-P", "-c", REFUSE + SCRIPT, place, json.dumps(NEW_CALLS), str(answer)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "prctl" in result.stderr:
        pytest.skip(f"no filter of system calls here: {result.stderr.splitlines()[-1]}")
    assert result.returncode == 0, result.stderr
    refused, link_error, demanded, mode, xattrs, errors, rows = json.loads(result.stdout)
    assert refused == []
    assert link_error == errno.EOPNOTSUPP
    # EPERM means "none" of a single file, so a sandbox's answer to a demanded way cannot be told from that.
    assert demanded == ([errno.ENOSYS] if answer == errno.ENOSYS else [])
    assert mode == stat.S_IFREG | 0o2640
    assert xattrs == [["user.new", "1"]]
    assert (errors, rows) == (0, [0])
