"""An emulated device in a process of its own, and jobs in processes of theirs that use it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SERVER = """
import sys
from pathlib import Path
from ohdiff.scheduling.emulated import EmulatedServer
server = EmulatedServer(Path(sys.argv[1]), failing_every=int(sys.argv[2]))
print("ready", flush=True)
server.run()
"""


@dataclass
class Server:
    """A running server."""

    path: Path
    process: subprocess.Popen[str]


@contextmanager
def running_server(path: Path, failing_every: int = 0) -> Iterator[Server]:
    """Serve until the block is left."""
    with python(SERVER, str(path), str(failing_every)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Server(path, process)


@contextmanager
def python(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that sees what this one sees, killed when the block is left."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()
