"""A real HTTP server beside real snapshots: its latencies, by how the snapshot is told to behave.

The client sends requests at times that it does not let the server choose (a Poisson process), and counts from then on.
A tree is cold when nothing of its files is in the page cache, and warm when all of it is.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from ohdiff.scheduling.hint.device_hint import DeviceHint
from ohdiff.scheduling.others import MACHINE
from ohdiff.scheduling.page_cache import cached_pages, drop

from .figures import environment, heard, line_of, quantile, spread, start

PER_SECOND = 300
HASH_ROUNDS = 600
DATA_BYTES = 64 << 20
BLOCK_BYTES = 16 << 10
FILES, FILE_BYTES = 9000, 100_000
# How the snapshot is run, and whether the server tells of its requests.
MODES = {"nice 19": (("nice", "-n", "19"), (), False), "scavenge": ((), ("--priority", "scavenge"), False)}
MODES["scavenge, told"] = ((), ("--priority", "scavenge"), True)


def beside(seconds: float, rounds: int, folder: Path) -> list[dict[str, Any]]:
    """Latencies beside each kind of snapshot over those alone, of a cold and of a warm tree, and what snapshots read.

    Parameters
    ----------
    folder : on a disk, for the tree; the repository is in memory.
    """
    tree = make_tree(folder / "tree")
    data = folder / "data"
    data.write_bytes(os.urandom(DATA_BYTES))
    alone = Latencies()
    found: dict[tuple[str, str], tuple[Latencies, list[float], list[float]]] = {}
    for round_number in range(rounds):
        alone.add(measure(seconds, data, round_number, is_telling=False))
        for state in ("cold", "warm"):
            for mode, (prefix, options, is_telling) in MODES.items():
                prepare(tree, is_warm=state == "warm")
                latencies, rates, left = found.setdefault((state, mode), (Latencies(), [], []))
                with snapshots(tree, prefix, options, folder) as read_bytes:
                    began = time.monotonic()
                    latencies.add(measure(seconds, data, round_number, is_telling=is_telling))
                    took = time.monotonic() - began
                rates.append(read_bytes[0] / took / 1e6)
                left.append(resident_share(tree))
        print(f"http round {round_number + 1}: alone p99 {alone.rounds[-1][1] * 1e3:.2f} ms", file=sys.stderr)
    return [
        {
            "tree": state,
            "mode": mode,
            "p50": latencies.over(alone, 0),
            "p99": latencies.over(alone, 1),
            "MB/s": spread(rates),
            "left": spread(left),
        }
        for (state, mode), (latencies, rates, left) in found.items()
    ]


class Latencies:
    """Those of one mode, of all rounds together; `rounds` has p50 and p99 of each."""

    def __init__(self) -> None:
        self._all: list[float] = []
        self.rounds: list[tuple[float, float]] = []

    def add(self, latencies: list[float]) -> None:
        """One more round."""
        self._all += latencies
        self.rounds.append((quantile(latencies, 0.5), quantile(latencies, 0.99)))

    def over(self, alone: Latencies, place: int) -> dict[str, float]:
        """p50 (place 0) or p99 (1) as a multiple of that alone: of all rounds together, and of the least and most."""
        part = (0.5, 0.99)[place]
        ratios = [one[place] / other[place] for one, other in zip(self.rounds, alone.rounds, strict=True)]
        whole = quantile(self._all, part) / quantile(alone._all, part)
        return {"whole": round(whole, 3), "least": round(min(ratios), 3), "most": round(max(ratios), 3)}


def make_tree(tree: Path) -> Path:
    """Files of some size that compress by half, as code and records do."""
    chance = random.Random(5)
    text = b"".join(b"%d lines of a log, the same and not the same\n" % chance.getrandbits(40) for _ in range(200_000))
    for number in range(FILES):
        path = tree / str(number % 50) / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        begin = chance.randrange(len(text) - FILE_BYTES)
        path.write_bytes(chance.randbytes(FILE_BYTES // 3) + text[begin : begin + FILE_BYTES * 2 // 3])
    os.sync()
    return tree


def prepare(tree: Path, *, is_warm: bool) -> None:
    """Have all of a tree in the page cache, or nothing."""
    for path in files_of(tree):
        with open(path, "rb") as file:
            if is_warm:
                file.read()
            else:
                drop(file.fileno())


def resident_share(tree: Path) -> float:
    """How much of a tree is in the page cache."""
    pages = wanted = 0
    for path in files_of(tree):
        with open(path, "rb") as file:
            pages += max(0, cached_pages(file.fileno()))
            wanted += -(-os.fstat(file.fileno()).st_size // 4096)
    return pages / wanted


def files_of(tree: Path) -> Iterator[Path]:
    """All files of the tree."""
    return (path for folder in tree.iterdir() for path in folder.iterdir())


@contextmanager
def snapshots(tree: Path, prefix: tuple[str, ...], options: tuple[str, ...], folder: Path) -> Iterator[list[int]]:
    """First snapshots of a tree, one after another, each into a repository of its own; gives what they have read."""
    read = [0]
    ended = threading.Event()
    running: list[subprocess.Popen[bytes]] = []

    def run() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            repository = folder / "memory" / str(number)
            command = (sys.executable, "-m", "ohdiff", "--repo", str(repository))
            subprocess.run([*command, "init", "--no-encryption"], check=True, capture_output=True, env=environment())
            snapshot = [*prefix, *command, "snapshot", str(tree), *options]
            running[:] = [
                subprocess.Popen(snapshot, stdout=subprocess.DEVNULL, start_new_session=True, env=environment())
            ]
            while running[0].poll() is None and not ended.wait(0.02):
                pass
            read[0] += read_by(running[0].pid) if running[0].poll() is None else FILES * FILE_BYTES
            running[0].kill()
            running[0].wait()
            subprocess.run(["rm", "-rf", str(repository)], check=True)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        time.sleep(1.0)
        yield read
    finally:
        ended.set()
        thread.join()
        if not read[0]:
            raise RuntimeError("the snapshot has read nothing")


def read_by(pid: int) -> int:
    """Bytes that a process has read by system calls."""
    words = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(words["rchar"])


def measure(seconds: float, data: Path, seed: int, *, is_telling: bool) -> list[float]:
    """Latencies of requests in seconds; server and client are processes of one session."""
    process = start("http_loop", str(seconds), str(data), str(seed), "told" if is_telling else "")
    return [float(word) for word in heard(process).split()]


def main() -> None:
    """Be the client, which starts the server; or the server."""
    if sys.argv[1] == "serve":
        serve(Path(sys.argv[2]), DeviceHint(MACHINE) if sys.argv[3] else None)
        return
    seconds, data, seed, told = float(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    server = subprocess.Popen(
        [sys.executable, "-m", "real_scheduling.http_loop", "serve", data, told], stdout=subprocess.PIPE, text=True
    )
    try:
        print(*(f"{latency:.6f}" for latency in ask(int(line_of(server)), seconds, random.Random(seed))))
    finally:
        server.kill()


def ask(port: int, seconds: float, chance: random.Random) -> list[float]:
    """Requests at chance times, over one connection; the first half second is for warming up."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    latencies = []
    began = due = time.perf_counter()
    while due < began + seconds:
        due += chance.expovariate(PER_SECOND)
        time.sleep(max(0.0, due - time.perf_counter()))
        connection.request("GET", f"/{chance.randrange(DATA_BYTES // BLOCK_BYTES)}")
        connection.getresponse().read()
        if due > began + 0.5:
            latencies.append(time.perf_counter() - due)
    return latencies


def serve(data: Path, hint: DeviceHint | None) -> None:
    """Answer with the hash of a block of the data, and do some more work for it."""
    file = os.open(data, os.O_RDONLY)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16

        def do_GET(self) -> None:
            with nullcontext() if hint is None else hint.busy():
                digest = os.pread(file, BLOCK_BYTES, int(self.path[1:]) * BLOCK_BYTES)
                for _ in range(HASH_ROUNDS):
                    digest = hashlib.sha256(digest).digest()
                self.send_response(200)
                self.send_header("Content-Length", str(len(digest)))
                self.end_headers()
                self.wfile.write(digest)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
