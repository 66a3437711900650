"""The engine's units on a device that others want, too: sizes, order, who goes first; in a time of the device's own."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from support import fake_cupy
from support.device_time import DeviceTime, SteppedPace, TimedCoRunner
from support.fake_cupy import Machine

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "contract"))

import engine_oracle as oracle
from engine_contract import ID_KEY, SMALL, packed

from ohdiff.chunking.cpu import CpuEngine
from ohdiff.chunking.cuda.engine import CudaEngine, CudaOptions
from ohdiff.chunking.cuda.kernels import TILE
from ohdiff.chunking.device_memory import DeviceMemory
from ohdiff.chunking.engine import cut_and_hash_segments, cut_and_hash_stream
from ohdiff.errors import DeviceError
from ohdiff.scheduling.core import MS, SECOND, US, Decision, Grant, JobClass, Policy, Telemetry, View
from ohdiff.scheduling.decision_log import DecisionLog, replay
from ohdiff.scheduling.device_driver import IDLE_NS, PATIENCE_NS, DeviceDriver, DeviceJob
from ohdiff.scheduling.lease import Lease
from ohdiff.scheduling.policies.compose import Arbiter, PolicySettings, build_policy
from ohdiff.scheduling.policies.share import PARK_AFTER_NS

NAME = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"
MIB = 1 << 20
FREE = PolicySettings(arbiter=Arbiter.NONE)


class Paced:
    """An engine whose device is driven."""

    def __init__(self, machine: Machine, folder: Path | None, policy: Policy, **more: object) -> None:
        self.machine = machine
        self.time = DeviceTime(machine)
        self.said: list[str] = []
        self.written = io.BytesIO()
        self.engine = CudaEngine(SMALL, ID_KEY, CudaOptions(batch_bytes=4 * MIB))
        self.cpu = CpuEngine(SMALL, ID_KEY)
        job = DeviceJob(NAME, **{"job_class": JobClass.SCAVENGE, "folder": folder, **more})  # type: ignore[arg-type]
        self.log = DecisionLog(self.written.write, FREE, "cuda")
        self.driver = DeviceDriver(
            policy, job, self.engine.pools, self.time.now_ns, log=self.log, note=self.said.append
        )
        self.pace = SteppedPace(self.driver, self.time)
        self.engine.pace = self.pace

    def check(self, size: int = 3 * MIB, name: str = "paced") -> list[int]:
        """Cut and hash something, as the CPU does; the sizes of the units that it took."""
        before = len(self.pace.started)
        data = oracle.random_bytes(name, size)
        assert self.engine.cut_and_hash_stream(data, True) == cut_and_hash_stream(self.cpu, data, True)
        return self.pace.sizes[before:]

    def memory(self, size: int, name: str = "resident") -> DeviceMemory:
        """Something that lies on the device."""
        data = oracle.random_bytes(name, size)
        array = fake_cupy.on_device(self.machine, data, (size,), "|u1")
        return DeviceMemory(array.memory.ptr, size, 0, array)

    def carry_out(self) -> None:
        """What a governor does with the memory."""
        for trim in self.driver.taken_trims():
            if trim.is_parked:
                self.engine.pools.park()
            else:
                self.engine.pools.trim(trim.keep_bytes)


class Granting:
    """A policy that grants what it is told to."""

    def __init__(self, grant: Grant | None) -> None:
        self.grant = grant

    def decide(self, now_ns: int, view: View) -> Decision:
        grants = (self.grant,) if self.grant is not None and view.jobs else ()
        return Decision(grants, wake_ns=now_ns + MS // 2)


def granting(**more: object) -> Granting:
    return Granting(replace(Grant(NAME, 1), **more))  # type: ignore[arg-type]


Make = Callable[..., Paced]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runtime"


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Make]:
    made: list[Paced] = []

    def build(policy: Policy | None = None, *, alone: bool = False, **more: object) -> Paced:
        machine = fake_cupy.install(monkeypatch, seed=1, eagerness=0.0)
        paced = Paced(machine, None if alone else folder, policy or build_policy(PolicySettings()), **more)
        made.append(paced)
        return paced

    yield build
    for paced in made:
        paced.driver.close()


def test_units_are_as_long_as_is_granted(make: Make) -> None:
    policy = granting(unit_ns=MS)
    paced = make(policy, alone=True)
    paced.check(12 * MIB)
    assert all(size % TILE == 0 for size in paced.pace.sizes[:-1])
    # 1 ms of two kernels that read at 100 ns a KiB each is 5 MB, less launches; and a lane holds 4 MiB.
    assert max(paced.pace.sizes) == 4 * MIB
    policy.grant = Grant(NAME, 1, unit_ns=MS // 4)
    paced.time.go_on(MS)
    short = paced.check(4 * MIB)
    assert all(size % TILE == 0 for size in short[:-1])
    ended = [unit.submitted_ns for unit in paced.pace.ended][-len(short) :]
    assert all(after - before <= 1.2 * MS / 4 for before, after in pairwise(ended))
    assert len(short) >= 4


def test_a_device_that_is_slow_gets_small_units_and_never_less_than_is_possible(make: Make) -> None:
    paced = make(granting(unit_ns=MS), alone=True)
    paced.time.ns_per_kib = 10_000
    paced.check(MIB)
    # The first is a guess: 1 ms at 2 GB/s, rather too short. The next are what 1 ms is really worth.
    assert paced.pace.sizes[1:] == [TILE] * (len(paced.pace.sizes) - 1)
    paced.time.ns_per_kib = 10_000_000
    paced.check(MIB)
    assert min(paced.pace.sizes[:-1]) == max(TILE, SMALL.max_size)


def test_resident_and_host_data_have_sizes_of_their_own(make: Make) -> None:
    calibrated = {"host": 1_000_000_000, "device": 100_000_000_000}
    paced = make(granting(unit_ns=4 * MS), alone=True, calibrated=calibrated)
    paced.time.ns_per_kib = 1
    assert paced.check(4 * MIB)[0] == 2_000_000 // TILE * TILE
    before = len(paced.pace.started)
    memory = paced.memory(6 * MIB)
    expected = cut_and_hash_stream(paced.cpu, oracle.random_bytes("resident", 6 * MIB), True)
    assert paced.engine.cut_resident(memory) == expected
    assert paced.pace.sizes[before:] == [6 * MIB]


def test_every_kind_of_call_is_paced_and_gives_the_same(make: Make) -> None:
    paced = make(granting(unit_ns=MS // 4), alone=True)
    data = oracle.random_bytes("kinds", 3 * MIB)
    ends = packed([0, 1, 5000, 5000, 77_777, MIB, len(data)])
    assert cut_and_hash_segments(paced.engine, data, ends) == cut_and_hash_segments(paced.cpu, data, ends)
    cuts = paced.cpu.cut_stream(data, True)
    assert paced.engine.cut_stream(data, False) == paced.cpu.cut_stream(data, False)
    assert paced.engine.hash_chunks(data, cuts) == paced.cpu.hash_chunks(data, cuts)
    assert paced.engine.features(data, cuts) == paced.cpu.features(data, cuts)
    ends_of_pieces = [100_000, 700_000, len(data)]
    assert paced.engine.hash_resident(paced.memory(3 * MIB, "kinds"), ends_of_pieces) == paced.cpu.hash_chunks(
        data, packed(ends_of_pieces)
    )
    assert {unit.kind for unit in paced.pace.ended} == {
        "host: files",
        "host: file without ids",
        "host: ids",
        "host: features",
        "device: ids",
    }
    assert paced.engine.counts.moved_calls == 0


def test_one_unit_is_in_flight_where_one_is_granted_and_two_where_two_are(make: Make) -> None:
    for depth in (1, 2):
        paced = make(granting(unit_ns=MS // 4, depth=depth), alone=True)
        most = 0
        start = paced.driver.start

        def counted(kind: str, size: int, paced: Paced = paced, start: Callable[..., object] = start) -> object:
            nonlocal most
            unit = start(kind, size)
            most = max(most, paced.driver.in_flight)
            return unit

        paced.driver.start = counted  # type: ignore[assignment,method-assign]
        paced.check(4 * MIB)
        assert most == depth
        assert paced.driver.in_flight == 0


def test_a_share_of_the_time_is_a_pause_after_each_unit(make: Make) -> None:
    paced = make(build_policy(replace(FREE, share_milli=250)), alone=True)
    memory = paced.memory(8 * MIB)
    paced.time.ns_per_kib = 1000
    began_ns = paced.time.now_ns()
    paced.engine.cut_resident(memory)
    shares = paced.driver.counts.served_ns * 1000 // (paced.time.now_ns() - began_ns)
    assert 200 <= shares <= 320


def test_a_job_that_says_it_is_busy_stops_new_units_within_one(make: Make, folder: Path) -> None:
    paced = make()
    hint = TimedCoRunner(folder, NAME, paced.time)
    paced.time.go_on(SECOND)
    paced.check(2 * MIB)
    memory = paced.memory(16 * MIB)
    busy_ns = paced.time.now_ns() + 1_500 * US
    paced.time.plan(1_500 * US, lambda: hint.say(is_busy=True))
    paced.time.plan(300 * MS, lambda: hint.say(is_busy=False))
    paced.engine.cut_resident(memory)
    meanwhile = [at_ns for _, at_ns in paced.pace.started if busy_ns < at_ns < busy_ns + 298 * MS]
    # The turn for it may have been given just before the word.
    assert len(meanwhile) <= 1
    in_flight = [unit for unit in paced.pace.ended if unit.submitted_ns <= busy_ns]
    assert all(unit.size_bytes * 200 // 1024 <= MS for unit in in_flight[-2:])
    assert any(at_ns >= busy_ns + 300 * MS for _, at_ns in paced.pace.started)
    hint.close()


def test_the_name_of_the_whole_machine_is_heard_as_well(make: Make, folder: Path) -> None:
    paced = make()
    hint = TimedCoRunner(folder, "machine", paced.time)
    hint.say(is_busy=True)
    assert paced.check(MIB) == []
    assert paced.engine.counts.moved_calls == 1
    hint.close()


def test_the_cpu_takes_over_what_the_device_is_refused_for_and_gives_it_back(make: Make, folder: Path) -> None:
    paced = make()
    hint = TimedCoRunner(folder, NAME, paced.time)
    hint.say(is_busy=True)
    began_ns = paced.time.now_ns()
    assert paced.check(MIB) == []
    assert PATIENCE_NS <= paced.time.now_ns() - began_ns <= PATIENCE_NS + MS
    for _ in range(3):
        # It is known by now: nobody waits for the same thing again.
        began_ns = paced.time.now_ns()
        assert paced.check(MIB) == []
        assert paced.time.now_ns() - began_ns <= MS
    assert paced.engine.counts.moved_calls == 4
    assert "the CPU did 4 calls while others needed the device" in paced.engine.notes
    hint.say(is_busy=False)
    paced.time.go_on(5 * MS)
    assert paced.check(MIB) != []
    hint.close()


def test_what_lies_on_the_device_waits_for_it_as_long_as_it_takes(make: Make, folder: Path) -> None:
    paced = make()
    hint = TimedCoRunner(folder, NAME, paced.time)
    hint.say(is_busy=True)
    paced.time.plan(3 * SECOND, lambda: hint.say(is_busy=False))
    memory = paced.memory(MIB)
    began_ns = paced.time.now_ns()
    paced.engine.hash_resident(memory, [MIB])
    assert paced.time.now_ns() - began_ns >= 3 * SECOND
    assert paced.engine.pools.held_bytes() > 0
    hint.close()


def test_a_better_class_gets_the_device_between_two_units(make: Make, folder: Path) -> None:
    paced = make()
    paced.check(2 * MIB)
    better = Lease(NAME, JobClass.NORMAL, folder, now=paced.time.now_ns)
    assert not better.request()
    # From now on the CPU does what comes, and the device is the other one's within the look at the next unit.
    paced.driver.look(paced.time.now_ns())
    for _ in range(500):
        if better.request():
            break
        wait_really()
    assert better.is_held
    assert paced.check(MIB) == []
    better.close()
    for _ in range(500):
        paced.time.go_on(MS)
        if paced.check(MIB):
            break
        wait_really()
    else:
        pytest.fail("the device never comes back")


def wait_really() -> None:
    """For the threads of leases, which wait in the kernel."""
    import threading

    threading.Event().wait(0.01)


def test_company_that_says_nothing_is_noticed_by_a_stretched_unit_and_looked_for_again(make: Make) -> None:
    paced = make()
    memory = paced.memory(24 * MIB)
    paced.engine.cut_resident(memory)
    paced.time.slowdown = 3
    paced.time.plan(500 * MS, lambda: setattr(paced.time, "slowdown", 1))
    began_ns, before = paced.time.now_ns(), len(paced.pace.ended)
    paced.engine.cut_resident(memory)
    crowded = [unit for unit in paced.pace.ended[before:] if unit.submitted_ns - began_ns < 500 * MS]
    probes = [unit for unit in crowded if unit.is_probe]
    assert 2 <= len(probes) <= 8
    # But for the first ones, which did not know yet, there were probes only.
    assert [unit.is_probe for unit in crowded[-len(probes) :]] == [True] * len(probes)
    assert paced.time.now_ns() - began_ns > 500 * MS
    after = [unit for unit in paced.pace.ended[before:] if unit.submitted_ns - began_ns >= 500 * MS]
    assert any(not unit.is_probe for unit in after)


def test_counters_that_show_others_at_work_let_no_unit_start(make: Make) -> None:
    paced = make(build_policy(PolicySettings(arbiter=Arbiter.TELEMETRY)))

    def window(others_milli: int) -> Telemetry:
        return Telemetry(paced.time.now_ns(), 170 * MS, 900, others_milli)

    paced.driver.telemetry = window(400)
    assert paced.check(MIB) == []
    paced.time.go_on(SECOND)
    paced.driver.telemetry = window(0)
    assert paced.check(MIB) != []


def test_without_counters_of_others_only_quiet_windows_without_us_are_believed(make: Make) -> None:
    paced = make(build_policy(PolicySettings(arbiter=Arbiter.TELEMETRY)))
    for busy_milli, is_used in ((900, False), (0, True)):
        paced.time.go_on(SECOND)
        paced.driver.look(paced.time.now_ns())
        paced.time.go_on(200 * MS)
        paced.driver.telemetry = Telemetry(paced.time.now_ns(), 100 * MS, busy_milli)
        assert bool(paced.check(MIB)) == is_used


def test_memory_is_given_back_when_others_take_it_and_work_goes_on(make: Make) -> None:
    paced = make()
    paced.check(4 * MIB)
    held = paced.engine.pools.held_bytes()
    assert held > 8 * MIB
    for free_bytes in (16 * MIB, 8 * MIB):
        paced.driver.telemetry = Telemetry(paced.time.now_ns(), 170 * MS, free_bytes=free_bytes)
        paced.check(MIB)
        paced.carry_out()
        paced.time.go_on(MS)
        assert paced.engine.pools.held_bytes() <= max((free_bytes + held) // 4, 4 * MIB)
        held = paced.engine.pools.held_bytes()
        paced.check(3 * MIB)
        assert paced.engine.pools.held_bytes() <= (free_bytes + 32 * MIB) // 4
    assert paced.engine.is_on_device
    assert paced.engine.pools.shrunk == 0


def test_an_idle_device_is_parked_after_half_a_minute_and_used_again(make: Make) -> None:
    paced = make()
    paced.check(2 * MIB)
    used = paced.machine.memory_used
    assert paced.engine.pools.held_bytes() > 0
    parked_ns = 0
    for second in range(60):
        paced.time.go_on(SECOND)
        paced.driver.look(paced.time.now_ns())
        paced.carry_out()
        if not parked_ns and paced.engine.pools.held_bytes() == 0:
            parked_ns = second * SECOND
    assert PARK_AFTER_NS <= parked_ns <= PARK_AFTER_NS + IDLE_NS + 2 * SECOND
    assert paced.machine.memory_used < used // 100
    paced.machine.memory_others = paced.machine.memory_total - 64 * MIB
    assert paced.check(4 * MIB) != []
    assert 0 < paced.engine.pools.held_bytes() <= 16 * MIB


def test_a_device_that_fails_between_units_is_left_alone(make: Make) -> None:
    paced = make()
    paced.check(2 * MIB)
    paced.time.plan(MS // 4, lambda: setattr(paced.machine, "is_dead", True))
    paced.check(4 * MIB)
    assert not paced.engine.is_on_device
    assert paced.driver.in_flight == 0
    assert paced.driver.counts.failed >= 1
    assert not paced.driver.is_usable
    assert paced.check(MIB) == []


@pytest.mark.parametrize("number", range(1, 5))
def test_an_allocation_that_fails_makes_units_smaller_at_most(make: Make, number: int) -> None:
    paced = make()
    paced.machine.failing_allocations = frozenset({paced.machine.allocations + number - 1})
    for each in range(4):
        paced.check(3 * MIB, f"fails {each}")
    assert paced.engine.is_on_device
    assert paced.driver.in_flight == 0
    assert paced.engine.counts.cpu_calls == 0


def test_a_launch_that_fails_in_a_resident_unit_is_an_error_and_the_unit_is_over(make: Make) -> None:
    paced = make()
    memory = paced.memory(2 * MIB)
    paced.machine.failing_launches = frozenset({len(paced.machine.launches) + 12})
    with pytest.raises(DeviceError):
        paced.engine.cut_resident(memory)
    assert paced.driver.in_flight == 0


def test_on_last_call_a_busy_device_is_used_for_the_allowed_share(make: Make, folder: Path) -> None:
    paced = make(build_policy(PolicySettings(impact_milli_max=100)))
    hint = TimedCoRunner(folder, NAME, paced.time)
    hint.say(is_busy=True)
    memory = paced.memory(8 * MIB)
    paced.driver.press(paced.time.now_ns(), is_last_call=True)
    began_ns = paced.time.now_ns()
    paced.engine.cut_resident(memory)
    share = paced.driver.counts.served_ns * 1000 // (paced.time.now_ns() - began_ns)
    assert 50 <= share <= 130
    hint.close()


def test_who_does_not_scavenge_does_not_wait_for_jobs(make: Make, folder: Path) -> None:
    paced = make(build_policy(PolicySettings(arbiter=Arbiter.XSCHED)), job_class=JobClass.NORMAL)
    hint = TimedCoRunner(folder, NAME, paced.time)
    hint.say(is_busy=True)
    assert paced.check(MIB) != []
    hint.close()


def test_a_folder_that_cannot_be_trusted_is_said_and_the_device_is_used(make: Make, folder: Path) -> None:
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    paced = make()
    assert paced.check(MIB) != []
    assert len(paced.said) == 1
    assert "open to other users" in paced.said[0]


def test_a_run_on_the_device_is_replayed_byte_for_byte(make: Make, folder: Path) -> None:
    settings = PolicySettings()
    paced = make(build_policy(settings))
    written = io.BytesIO()
    paced.driver._standing._log = DecisionLog(written.write, settings, "cuda")
    hint = TimedCoRunner(folder, NAME, paced.time)
    for number in range(8):
        paced.check(2 * MIB, f"replay {number}")
        paced.driver.telemetry = Telemetry(paced.time.now_ns(), 170 * MS, 10, 0, (number + 1) << 24)
        hint.say(is_busy=True)
        paced.check(MIB)
        paced.time.go_on(30 * MS)
        hint.say(is_busy=False)
        paced.time.go_on(5 * MS)
    hint.close()
    paced.time.slowdown = 3
    paced.engine.cut_resident(paced.memory(4 * MIB))
    done = replay(written.getvalue().splitlines(keepends=True))
    assert done.difference is None
    assert done.driver == "cuda"
    assert done.decisions > 12
    assert b'"trims":[{' in written.getvalue()
