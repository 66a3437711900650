"""The real loop on the emulated device: real processes that share, stretch, lease, fail, stop and die."""

from __future__ import annotations

import io
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.emulation import python, running_server
from support.lease_agent import Agent

from ohdiff import clock
from ohdiff.scheduling.core import MS, SECOND, CoRunner, Job, JobClass, Unit, UnitDone
from ohdiff.scheduling.decision_log import DecisionLog, replay
from ohdiff.scheduling.emulated import EmulatedDevice, RealClock, WakingClock
from ohdiff.scheduling.hint.device_hint import DeviceHint
from ohdiff.scheduling.lease import Lease
from ohdiff.scheduling.policies.compose import Arbiter, PolicySettings, build_policy
from ohdiff.scheduling.real_loop import LeasedDevice, RealLoop
from ohdiff.scheduling.shared_page import SharedPage
from ohdiff.scheduling.signals import CoRunnerSignals

DEVICE = "gpu-1"
PATIENCE_NS = 60 * SECOND
RATE = 1 << 30

# A co-runner: steps of device time, said with hints or not, reported one a line.
CO_RUNNER = """
import sys, threading
from contextlib import nullcontext
from pathlib import Path
from ohdiff import clock
from ohdiff.scheduling.core import Unit
from ohdiff.scheduling.emulated import EmulatedDevice
from ohdiff.scheduling.hint.device_hint import DeviceHint
path, folder, step_ns = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
hint = DeviceHint("gpu-1", folder=folder) if folder else None
device = EmulatedDevice(path)
number = 0
while True:
    number += 1
    began = clock.monotonic_ns()
    with hint.busy() if hint else nullcontext():
        device.submit(Unit(number, 1, 1, step_ns))
        while not device.poll():
            threading.Event().wait(0.0002)
    print(clock.monotonic_ns() - began, flush=True)
    threading.Event().wait(float(sys.argv[4]))
"""


class Pieces:
    """Work of so many pieces, or without end until `stop`; keeps what was done, and when units started."""

    def __init__(self, count: int, unit_ns: int = SECOND) -> None:
        self._todo = list(range(count, 0, -1))
        self._unit_ns = unit_ns
        self._in_flight: set[int] = set()
        self._numbers = 0
        self._pieces: dict[int, int] = {}
        self.done: list[int] = []
        self.started_ns: list[int] = []
        self.failed = 0

    def jobs(self) -> tuple[Job, ...]:
        left = len(self._todo) + len(self._in_flight)
        return (Job(1, JobClass.SCAVENGE, 0, left),) if left else ()

    def next_unit(self, job: int, device: str, size_bytes: int, *, is_probe: bool) -> Unit | None:
        if not self._todo:
            return None
        self._numbers += 1
        piece = self._todo.pop()
        self._pieces[self._numbers] = piece
        self._in_flight.add(piece)
        self.started_ns.append(clock.monotonic_ns())
        expected_ns = min(self._unit_ns, max(1, size_bytes * SECOND // RATE))
        return Unit(self._numbers, job, size_bytes, expected_ns, is_probe)

    def take(self, device: str, done: UnitDone) -> None:
        piece = self._pieces.pop(done.unit.number)
        self._in_flight.discard(piece)
        if done.is_ok:
            self.done.append(piece)
        else:
            self.failed += 1
            self._todo.append(piece)

    def stop(self) -> None:
        self._todo.clear()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runtime"


@pytest.fixture(scope="module")
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with running_server(tmp_path_factory.mktemp("emulated") / "socket") as server:
        yield server.path


def loop_of(
    work: Pieces,
    *devices: LeasedDevice,
    arbiter: Arbiter = Arbiter.NONE,
    co_runners: Callable[[int], tuple[CoRunner, ...]] = lambda now_ns: (),
    log: DecisionLog | None = None,
) -> RealLoop:
    policy = build_policy(PolicySettings(arbiter=arbiter))
    return RealLoop(policy, devices, work, RealClock(), co_runners=co_runners, log=log, bad_ns_min=5 * MS)


def emulated(path: Path, name: str = DEVICE) -> EmulatedDevice:
    return EmulatedDevice(path, name, RATE)


def run_for(loop: RealLoop, work: Pieces, seconds: float) -> None:
    """Run work without end for some time."""
    timer = threading.Timer(seconds, work.stop)
    timer.start()
    loop.run()
    timer.join()


def test_two_busy_processes_stretch_each_others_units(socket_path: Path) -> None:
    device = emulated(socket_path)
    with python(CO_RUNNER, str(socket_path), "", str(20 * MS), "0") as other:
        assert other.stdout is not None
        other.stdout.readline()
        took_ns = []
        for number in range(1, 6):
            device.submit(Unit(number, 1, 1, 20 * MS))
            while not (done := device.poll()):
                threading.Event().wait(0.0005)
            took_ns.append(done[0].ended_ns - done[0].submitted_ns)
    device.park()
    # The other may be between two steps for a moment, so one of five counts.
    assert max(took_ns) > 30 * MS
    assert min(took_ns) >= 20 * MS


def test_a_killed_process_leaves_the_device_to_the_rest(socket_path: Path) -> None:
    with python(CO_RUNNER, str(socket_path), "", str(3600 * SECOND), "0") as other:
        threading.Event().wait(0.3)
        other.kill()
    work, device = Pieces(20, MS), emulated(socket_path)
    loop_of(work, LeasedDevice(device)).run()
    device.park()
    assert sorted(work.done) == list(range(1, 21))


@pytest.mark.parametrize("arbiter", list(Arbiter))
def test_all_work_is_done_once_under_every_policy(socket_path: Path, arbiter: Arbiter) -> None:
    work, device = Pieces(30), emulated(socket_path)
    loop_of(work, LeasedDevice(device), arbiter=arbiter).run()
    device.park()
    assert sorted(work.done) == list(range(1, 31))
    assert work.failed == 0


def test_a_clock_that_hears_of_units_wakes_the_loop_at_their_ends(socket_path: Path) -> None:
    device = emulated(socket_path)
    waking = WakingClock([device])
    device.submit(Unit(1, 1, 1, 5 * MS))
    waking.wait_until(clock.monotonic_ns() + PATIENCE_NS)
    assert [done.unit.number for done in device.poll()] == [1]
    work, policy = Pieces(30), build_policy(PolicySettings(arbiter=Arbiter.NONE, depth=2))
    # With nothing else to wait for, a loop that was not woken would need an hour.
    RealLoop(policy, [LeasedDevice(device)], work, waking, look_ns=120 * SECOND, is_woken=True).run()
    device.park()
    assert sorted(work.done) == list(range(1, 31))


def test_units_that_a_device_fails_are_done_again(tmp_path: Path) -> None:
    with running_server(tmp_path / "socket", failing_every=7) as server:
        work, device = Pieces(40, MS), emulated(server.path)
        loop_of(work, LeasedDevice(device)).run()
        device.park()
    assert sorted(work.done) == list(range(1, 41))
    assert work.failed >= 5


def test_a_lost_device_costs_no_work_where_there_is_another(tmp_path: Path) -> None:
    with running_server(tmp_path / "one") as one, running_server(tmp_path / "two") as two:
        work = Pieces(200, MS)
        devices = [emulated(one.path, "gpu-1"), emulated(two.path, "gpu-2")]
        killer = threading.Timer(0.1, one.process.kill)
        killer.start()
        loop_of(work, *(LeasedDevice(each) for each in devices)).run()
        killer.join()
        for each in devices:
            each.park()
    assert sorted(work.done) == list(range(1, 201))


def test_no_unit_starts_while_a_job_says_that_it_is_busy(socket_path: Path, folder: Path) -> None:
    page = SharedPage.in_folder(folder, DEVICE)
    hint = DeviceHint(DEVICE, folder=str(folder))
    signals = CoRunnerSignals(DEVICE, [page])
    work, device = Pieces(1_000_000), emulated(socket_path)
    busy: list[int] = []

    def be_busy() -> None:
        threading.Event().wait(0.2)
        with hint.busy():
            busy.append(clock.monotonic_ns())
            threading.Event().wait(0.4)
            busy.append(clock.monotonic_ns())

    thread = threading.Thread(target=be_busy)
    thread.start()
    run_for(loop_of(work, LeasedDevice(device), arbiter=Arbiter.PRIORITY, co_runners=signals.read), work, 1.0)
    thread.join()
    device.park()
    hint.close()
    page.close()
    start_ns, end_ns = busy
    # A look at the page is due every few milliseconds; a busy machine may delay one, by no means by so much.
    assert not [at_ns for at_ns in work.started_ns if start_ns + 100 * MS < at_ns < end_ns]
    assert any(at_ns > end_ns for at_ns in work.started_ns)


def test_a_stretched_unit_makes_us_keep_away_without_any_hint(socket_path: Path) -> None:
    def started_in_a_second(arbiter: Arbiter) -> int:
        work, device = Pieces(1_000_000), emulated(socket_path)
        run_for(loop_of(work, LeasedDevice(device), arbiter=arbiter), work, 1.0)
        device.park()
        return len(work.done)

    alone = started_in_a_second(Arbiter.STRETCH)
    with python(CO_RUNNER, str(socket_path), "", str(100 * MS), "0") as other:
        assert other.stdout is not None
        other.stdout.readline()
        beside = started_in_a_second(Arbiter.STRETCH)
        careless = started_in_a_second(Arbiter.NONE)
    assert beside < alone / 2
    assert beside < careless / 2


def test_a_jobs_reported_steps_limit_what_we_take(socket_path: Path, folder: Path) -> None:
    page = SharedPage.in_folder(folder, DEVICE)

    def mean_step_ns(arbiter: Arbiter) -> float:
        signals = CoRunnerSignals(DEVICE, [page])
        work, device = Pieces(1_000_000), emulated(socket_path)
        with python(CO_RUNNER, str(socket_path), str(folder), str(10 * MS), "0") as other:
            assert other.stdout is not None
            other.stdout.readline()
            run_for(loop_of(work, LeasedDevice(device), arbiter=arbiter, co_runners=signals.read), work, 1.0)
            other.kill()
            steps = [int(line) for line in other.stdout.read().splitlines()]
        device.park()
        return sum(steps) / len(steps)

    assert mean_step_ns(Arbiter.RATE) < mean_step_ns(Arbiter.NONE)
    page.close()


def test_the_lease_is_waited_for_and_given_up_between_processes(socket_path: Path, folder: Path) -> None:
    work, device = Pieces(30), emulated(socket_path)
    lease = Lease(DEVICE, JobClass.SCAVENGE, folder)
    with Agent(folder, JobClass.INTERACTIVE, DEVICE) as restore:
        assert restore.ask("acquire") == "held"
        loop = loop_of(work, LeasedDevice(device, lease), arbiter=Arbiter.PRIORITY)
        thread = threading.Thread(target=loop.run)
        thread.start()
        threading.Event().wait(0.2)
        assert work.started_ns == []
        assert restore.ask("release") == "free"
        thread.join(60)
    assert sorted(work.done) == list(range(1, 31))
    assert not lease.is_held
    lease.close()
    device.park()


def test_a_restore_interrupts_a_loop_between_units(socket_path: Path, folder: Path) -> None:
    work, device = Pieces(1_000_000), emulated(socket_path)
    lease = Lease(DEVICE, JobClass.SCAVENGE, folder)
    loop = loop_of(work, LeasedDevice(device, lease), arbiter=Arbiter.PRIORITY)
    thread = threading.Thread(target=loop.run)
    thread.start()
    with Agent(folder, JobClass.INTERACTIVE, DEVICE) as restore:
        for _ in range(5):
            assert restore.ask("acquire") == "held"
            held_from_ns = clock.monotonic_ns()
            threading.Event().wait(0.05)
            held_to_ns = clock.monotonic_ns()
            assert restore.ask("release") == "free"
            assert not [at_ns for at_ns in work.started_ns if held_from_ns < at_ns < held_to_ns]
    work.stop()
    thread.join(60)
    assert work.done
    lease.close()
    device.park()


def test_kills_and_stops_of_peers_cost_no_work_and_no_exclusion(socket_path: Path, folder: Path) -> None:
    chance = random.Random(5)
    work, device = Pieces(1_000_000), emulated(socket_path)
    lease = Lease(DEVICE, JobClass.NORMAL, folder)
    loop = loop_of(work, LeasedDevice(device, lease), arbiter=Arbiter.PRIORITY)
    thread = threading.Thread(target=loop.run)
    thread.start()
    for round_number in range(4):
        with Agent(folder, chance.choice(list(JobClass)), DEVICE) as peer:
            peer.say("hold 1")
            threading.Event().wait(chance.uniform(0, 0.1))
            if round_number % 2:
                peer.stop()
                threading.Event().wait(chance.uniform(0, 0.1))
                os.kill(peer.pid, signal.SIGCONT)
            peer.kill()
    count = len(work.done)
    until_ns = clock.monotonic_ns() + PATIENCE_NS
    while len(work.done) < count + 5:
        assert clock.monotonic_ns() < until_ns, "a dead peer keeps the device"
        threading.Event().wait(0.01)
    work.stop()
    thread.join(60)
    assert len(work.done) == len(set(work.done))
    lease.close()
    device.park()


@pytest.mark.parametrize("arbiter", [Arbiter.AUTO, Arbiter.RATE])
def test_a_real_runs_decisions_are_made_again_from_its_log(socket_path: Path, folder: Path, arbiter: Arbiter) -> None:
    settings = PolicySettings(arbiter=arbiter)
    written = io.BytesIO()
    page = SharedPage.in_folder(folder, DEVICE)
    signals = CoRunnerSignals(DEVICE, [page])
    work, device = Pieces(1_000_000), emulated(socket_path)
    lease = Lease(DEVICE, JobClass.SCAVENGE, folder)
    log = DecisionLog(written.write, settings, "emulated")
    with python(CO_RUNNER, str(socket_path), str(folder), str(3 * MS), "0.02") as other:
        assert other.stdout is not None
        other.stdout.readline()
        loop = loop_of(work, LeasedDevice(device, lease), arbiter=arbiter, co_runners=signals.read, log=log)
        run_for(loop, work, 0.7)
    lease.close()
    device.park()
    page.close()
    again = replay(written.getvalue().splitlines(keepends=True))
    assert again.difference is None
    assert again.decisions >= 2
