"""Containers that would need far more memory than they hold: read in a process whose address space may not grow.

Run as a script it is that process; it prints how many bombs it has read.
"""

from __future__ import annotations

import resource
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from support.container_files import (
    MemorySource,
    gguf_string,
    safetensors_with_header,
    storage_op,
    tensor_op,
    text_op,
    torch_file,
)

from ohdiff.chunking.containers import read_container

MIB = 1 << 20
# What the bounds of one container allow, with room: the header, what it is parsed into, and copies on the way.
HEADROOM = 128 * MIB
ARRAYS = {"w": ("FloatStorage", (3, 4))}


def bombs() -> Iterator[bytes]:
    """Files of a few MiB; what they cost grows no faster than they do."""
    yield safetensors_with_header(b"{" + b",".join(b'"%x":0' % row for row in range(400_000)) + b"}", b"")
    yield safetensors_with_header(
        b'{"a":{"dtype":"F32","data_offsets":[0,4],"shape":[' + b"1000," * 1_000_000 + b"1]}}", bytes(4)
    )
    yield b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60) + bytes(MIB)
    yield (
        b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + gguf_string("a") + struct.pack("<IIQ", 9, 8, 1 << 60) + bytes(4 * MIB)
    )
    for body in pickles():
        yield torch_file(ARRAYS, b"\x80\x02" + body + b".")


def pickles() -> Iterator[bytes]:
    """Many instructions, many references to one large value, and copies of copies."""
    yield b"]" * 500_000
    yield b"}" + b"]q\x00" + b"h\x00h\x00s" * 150_000
    key = text_op("k" * MIB) + b"q\x09"
    tensor = tensor_op("FloatStorage", "0", (12,)) + b"q\x08"
    yield b"](" + key + tensor + b"00}(" + b"h\x09h\x08" * 120_000 + b"u"
    yield b"](" + b"]" * 120_000 + b"tq\x07" + b"cx\ny\nh\x07R0" * 60_000
    yield b"](" + storage_op("FloatStorage", "0", 12) + b"q\x06" + b"h\x060" * 150_000
    yield b"\x8b\xff\xff\xff\x7f"
    yield b"B\xff\xff\xff\xff"
    yield b"r\xff\xff\xff\xff"


def main() -> None:
    made = list(bombs())
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + HEADROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for data in made:
        read_container(MemorySource(data))
    sys.stdout.write(f"{len(made)}\n")


@pytest.mark.skipif(sys.platform != "linux", reason="the address space can only be capped on Linux")
def test_bombs_are_read_within_the_bounds() -> None:
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 12


if __name__ == "__main__":
    main()
