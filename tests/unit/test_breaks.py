"""Threads take breaks in native loops and while they compute, and nowhere else; what they compute stays the same."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from ohdiff import _posix
from ohdiff.breaks import NO_BREAKS, BreakTimes, break_if_due, computing, count_breaks, take_breaks
from ohdiff.chunking.cpu import CpuEngine
from ohdiff.chunking.rule import ChunkingRule
from ohdiff.repository.encoding import Encoder
from ohdiff.repository.open_block import OpenBlock

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="breaks exist on Linux only")
OFTEN = BreakTimes(work_us=200, short_us=10, long_us=50)
PATIENCE_SECONDS = 60


@pytest.fixture(autouse=True)
def without_breaks() -> Iterator[None]:
    yield
    take_breaks(NO_BREAKS)


def compute_until(is_over: threading.Event, least: int) -> int:
    """Burn processor time until so many breaks were taken; how many there were."""
    before = count_breaks()[0]
    end = time.monotonic() + PATIENCE_SECONDS
    while count_breaks()[0] - before < least and time.monotonic() < end and not is_over.is_set():
        sum(range(2000))
    return count_breaks()[0] - before


def test_a_computing_thread_takes_breaks_again_and_again() -> None:
    take_breaks(OFTEN)
    with computing:
        assert compute_until(threading.Event(), 20) >= 20


def test_no_breaks_unless_somebody_asked_for_them() -> None:
    before = count_breaks()
    with computing:
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            break_if_due()
    assert count_breaks() == before


def test_no_breaks_outside_of_computing() -> None:
    take_breaks(OFTEN)
    with computing, computing:
        compute_until(threading.Event(), 1)
    before = count_breaks()
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        sum(range(2000))
    time.sleep(0.01)
    assert count_breaks() == before


def test_computing_goes_on_after_an_inner_one_ends_and_ends_with_an_error() -> None:
    take_breaks(OFTEN)
    with pytest.raises(ZeroDivisionError), computing:
        with computing:
            compute_until(threading.Event(), 1)
        assert compute_until(threading.Event(), 3) >= 3
        _ = 1 / 0
    before = count_breaks()
    time.sleep(0.01)
    assert count_breaks() == before


def test_breaks_between_steps_come_after_work_and_not_before() -> None:
    take_breaks(BreakTimes(work_us=1000, short_us=10, long_us=0))
    break_if_due()
    before = count_breaks()[0]
    end = time.monotonic() + 0.05
    calls = 0
    while time.monotonic() < end:
        break_if_due()
        calls += 1
    taken = count_breaks()[0] - before
    assert 0 < taken <= 50
    assert calls > taken


def test_threads_come_and_go() -> None:
    take_breaks(OFTEN)
    is_over = threading.Event()
    found: list[int] = []

    def work() -> None:
        with computing:
            found.append(compute_until(is_over, 3))

    for _ in range(5):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 20
    assert min(found) >= 3


def test_a_waiting_system_call_is_not_interrupted() -> None:
    """A thread that has computed waits in a call that reports interruptions; breaks of others do not reach it."""
    take_breaks(OFTEN)
    reading, writing = os.pipe()
    interruptions: list[int] = []
    is_waiting, is_over = threading.Event(), threading.Event()

    def wait() -> None:
        with computing:
            compute_until(is_over, 2)
        before = voluntary_switches()
        is_waiting.set()
        os.read(reading, 1)
        interruptions.append(voluntary_switches() - before)

    thread = threading.Thread(target=wait)
    thread.start()
    assert is_waiting.wait(PATIENCE_SECONDS)
    with computing:
        compute_until(is_over, 30)
    os.write(writing, b"x")
    thread.join()
    os.close(reading)
    os.close(writing)
    # Once for the pipe, and a few times for the interpreter's lock; a timer that went on would wake it at every break.
    assert interruptions[0] < 20


def voluntary_switches() -> int:
    with open("/proc/thread-self/status") as status:
        lines = dict(line.split(":", 1) for line in status)
    return int(lines["voluntary_ctxt_switches"])


@pytest.mark.parametrize("times", [(-1, 0, 0), (0, -1, 0), (0, 0, 1e6), (float("nan"), 0, 0)])
def test_times_that_are_none_are_refused(times: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="breaks"):
        _posix.set_breaks(*times)


def test_cuts_ids_features_and_blocks_are_the_same() -> None:
    data = random.Random(3).randbytes(6 << 20) + bytes(range(256)) * (8 << 10)
    rule = ChunkingRule.from_key(bytes(range(32)), avg_size=64 << 10)

    def everything() -> tuple[bytes, ...]:
        engine = CpuEngine(rule, bytes(32))
        cuts, counts = engine.cut_segments(data, [len(data) // 2, len(data)])
        ids, features = engine.hash_chunks(data, cuts), engine.features(data, cuts)
        block = OpenBlock(parts=[memoryview(data)], sizes=[len(data)], prefixes=[ids[:16]], size=len(data))
        return cuts, counts, ids, features, bytes(Encoder(3).encode(block).payload)

    plain = everything()
    take_breaks(OFTEN)
    before = count_breaks()[0]
    assert everything() == plain
    assert count_breaks()[0] > before
