"""Signals: what the kernel tells of others, less what is ours; and what it does not tell is absent."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from ohdiff import clock
from ohdiff.scheduling import nvml
from ohdiff.scheduling.core import MS, SECOND, Activity, Host
from ohdiff.scheduling.shared_page import Kind, SharedPage, Slot, unpacked
from ohdiff.scheduling.signals import CoRunnerSignals, HostSignals, ThreadTimes

TICK = SECOND // os.sysconf("SC_CLK_TCK")


class Proc:
    """A /proc as the kernel writes it, with figures of our choice."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.idle = {0: 0, 1: 0, 2: 0}
        self.totals = {"cpu": 0, "io": 0, "memory": 0}
        self.waits = {"101": 0}
        self.write()

    def write(self) -> Path:
        (self.path / "pressure").mkdir(parents=True, exist_ok=True)
        cores = [f"cpu{core} 5 5 5 {ticks} 0 0 0 0 0 0\n" for core, ticks in self.idle.items()]
        (self.path / "stat").write_text("cpu  1 1 1 1 1 1 1 1 1 1\n" + "".join(cores) + "intr 1 2 3\n")
        for name, total in self.totals.items():
            (self.path / "pressure" / name).write_text(
                f"some avg10=99.00 avg60=9.00 avg300=9.00 total={total}\nfull avg10=0.00 total=77\n"
            )
        for thread, wait in self.waits.items():
            task = self.path / "self" / "task" / thread
            task.mkdir(parents=True, exist_ok=True)
            (task / "schedstat").write_text(f"1 {wait} 1\n")
        return self.path


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path / "proc")


def test_before_the_first_window_nothing_is_held_against_us(proc: Proc) -> None:
    assert HostSignals([0, 1], proc.path).read(0) == Host(cores=2, cores_idle_milli=2000)


def test_idle_time_counts_on_our_cores_only(proc: Proc) -> None:
    signals = HostSignals([0, 2], proc.path)
    signals.read(0)
    second = SECOND // TICK
    proc.idle = {0: second // 2, 1: second, 2: second // 4}
    proc.write()
    # Own processor time of this very test is free to us, so the figure is never below what is idle.
    assert 750 <= signals.read(SECOND).cores_idle_milli <= 1200


def test_own_work_is_not_taken_for_others(proc: Proc) -> None:
    signals = HostSignals([0], proc.path)
    signals.read(0)
    end_ns = clock.monotonic_ns() + 300 * MS
    while clock.monotonic_ns() < end_ns:
        pass
    # No tick was idle, but the core was ours: how much we got depends on who else is there.
    assert signals.read(300 * MS).cores_idle_milli > 0


def test_pressure_is_that_of_the_last_window(proc: Proc) -> None:
    signals = HostSignals([0], proc.path)
    signals.read(0)
    proc.totals = {"cpu": 200_000, "io": 500_000, "memory": 2_000_000}
    proc.write()
    host = signals.read(SECOND)
    assert (host.cpu_pressure_milli, host.io_pressure_milli, host.memory_pressure_milli) == (200, 500, 1000)
    host = signals.read(2 * SECOND)
    assert (host.cpu_pressure_milli, host.io_pressure_milli, host.memory_pressure_milli) == (0, 0, 0)


def test_our_own_waiting_is_not_pressure(proc: Proc) -> None:
    signals = HostSignals([0], proc.path)
    signals.read(0)
    proc.totals["cpu"] = 200_000
    proc.waits = {"101": 150 * MS, "102": 900 * MS}
    proc.write()
    # The second thread is new: what it waited before is not of this window.
    assert signals.read(SECOND).cpu_pressure_milli == 50


def test_a_short_window_is_not_judged(proc: Proc) -> None:
    signals = HostSignals([0], proc.path)
    first = signals.read(0)
    proc.totals["cpu"] = 99_000
    proc.write()
    assert signals.read(99 * MS) == first
    assert signals.read(100 * MS).cpu_pressure_milli == 990


def test_a_kernel_that_tells_nothing_gives_no_pressure(tmp_path: Path) -> None:
    signals = HostSignals([0, 1], tmp_path / "nothing")
    signals.read(0)
    host = signals.read(SECOND)
    assert (host.cores, host.cpu_pressure_milli, host.io_pressure_milli) == (2, 0, 0)


def test_this_machine_can_be_read() -> None:
    signals = HostSignals(os.sched_getaffinity(0))
    signals.read(0)
    host = signals.read(SECOND)
    assert 0 <= host.cores_idle_milli <= 1000 * host.cores
    assert 0 <= host.cpu_pressure_milli <= 1000


def test_a_threads_time_is_its_own() -> None:
    times = ThreadTimes()
    ran_ns, waited_ns = times.read()
    if (ran_ns, waited_ns) == (0, 0) and not Path("/proc/self/schedstat").exists():
        pytest.skip("this kernel keeps no schedstat")
    end_ns = clock.monotonic_ns() + 30 * MS
    while clock.monotonic_ns() < end_ns:
        pass
    busy_ns = times.read()[0] - ran_ns
    assert busy_ns > 0
    told: list[int] = []
    thread = threading.Thread(target=lambda: told.append(times.read()[0]))
    thread.start()
    thread.join()
    assert told[0] < times.read()[0]


def test_a_thread_without_schedstat_has_no_stretch(tmp_path: Path) -> None:
    assert ThreadTimes(tmp_path).read() == (0, 0)


def test_co_runners_of_all_pages_are_seen_in_order(tmp_path: Path) -> None:
    pages, writers = [], []
    now_ns = clock.monotonic_ns()
    for device in ("cpu", "machine"):
        pages.append(SharedPage.in_folder(tmp_path / "runtime", device))
        writer = SharedPage.in_folder(tmp_path / "runtime", device)
        assert writer.claim()
        writer.write(Slot(0, os.getpid(), Kind.CO_RUNNER, is_busy=device == "machine", beat_ns=now_ns, unit_ns=SECOND))
        writers.append(writer)
    found = CoRunnerSignals("cpu", pages).read(now_ns)
    assert [each.name for each in found] == sorted(each.name for each in found)
    assert sorted(each.activity for each in found) == [Activity.BUSY, Activity.IDLE]
    assert {each.device for each in found} == {"cpu"}
    for page in (*pages, *writers):
        page.close()


def test_a_slot_of_rubbish_is_no_slot() -> None:
    assert unpacked(0, b"\xff" * 64) is None
    assert unpacked(0, b"") is None
    slot = Slot(3, 1, Kind.CO_RUNNER, is_busy=True, beat_ns=5, steps=7)
    assert unpacked(3, slot.packed()) == slot


def test_without_a_driver_there_are_no_counters() -> None:
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("there is a driver here")
    assert nvml.open_nvml("GPU-00000000-0000-0000-0000-000000000000") is None
