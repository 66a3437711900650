"""The governor of a device: threads of one engine, other processes, and the engine's own results, in real time."""

from __future__ import annotations

import io
import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import fake_cupy
from support.fake_cupy import Machine
from support.lease_agent import Agent

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "contract"))

import engine_oracle as oracle
from engine_contract import ID_KEY, SMALL, EngineContract, MakeEngine, packed

from ohdiff import clock
from ohdiff.chunking.cpu import CpuEngine
from ohdiff.chunking.cuda.device import shared_name
from ohdiff.chunking.cuda.engine import CudaEngine, CudaOptions
from ohdiff.chunking.cuda.pacing import UNPACED
from ohdiff.chunking.engine import cut_and_hash_stream
from ohdiff.chunking.rule import ChunkingRule
from ohdiff.errors import UsageError
from ohdiff.operations.device_pacing import DeviceManners, manners_of_priority, paced_device
from ohdiff.scheduling.core import MS, SECOND, Decision, Grant, JobClass, Telemetry, Trim, View
from ohdiff.scheduling.decision_log import DecisionLog, replay
from ohdiff.scheduling.device_driver import DeviceJob
from ohdiff.scheduling.device_governor import DeviceGovernor
from ohdiff.scheduling.hint.device_hint import DeviceHint
from ohdiff.scheduling.lease import Lease
from ohdiff.scheduling.nvml import open_nvml
from ohdiff.scheduling.policies.compose import PolicySettings

NAME = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"
MIB = 1 << 20
PATIENCE = 60.0


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return fake_cupy.install(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runtime"


@pytest.fixture
def engine(machine: Machine) -> CudaEngine:
    return CudaEngine(SMALL, ID_KEY, CudaOptions(batch_bytes=MIB))


@contextmanager
def governed(engine: CudaEngine, folder: Path | None, job_class: JobClass = JobClass.SCAVENGE) -> Iterator[object]:
    with paced_device(engine, DeviceManners(job_class, folder=folder)) as governor:
        assert governor is not None
        yield governor


def wait_until_true(condition: Callable[[], object]) -> None:
    until_ns = clock.monotonic_ns() + 60 * SECOND
    while not condition():
        assert clock.monotonic_ns() < until_ns
        threading.Event().wait(0.002)


def check(engine: CudaEngine, size: int = MIB, name: str = "governed") -> None:
    data = oracle.random_bytes(name, size)
    assert engine.cut_and_hash_stream(data, True) == cut_and_hash_stream(engine.cpu, data, True)


class TestEngineContract(EngineContract):
    """The suite that every engine passes, with the smallest units that there are, two at a time."""

    @pytest.fixture
    def make(self, machine: Machine) -> Iterator[MakeEngine]:
        with ExitStack() as stack:

            def build(rule: ChunkingRule) -> CudaEngine:
                engine = CudaEngine(rule, ID_KEY)
                job = DeviceJob(NAME, JobClass.SCAVENGE)
                engine.pace = stack.enter_context(DeviceGovernor(Granting(2, unit_ns=1), job, engine.pools))
                return engine

            yield build


class Granting:
    """A policy that always grants the same; `most` is how many units it saw in flight."""

    def __init__(self, depth: int = 1, unit_ns: int = MS, gap_ns: int = 0) -> None:
        self.grant = Grant(NAME, 1, unit_ns=unit_ns, depth=depth, gap_ns=gap_ns)
        self.is_granting = True

    def decide(self, now_ns: int, view: View) -> Decision:
        grants = (self.grant,) if view.jobs and self.is_granting else ()
        return Decision(grants, wake_ns=now_ns + MS)


@contextmanager
def driven(engine: CudaEngine, policy: Granting) -> Iterator[DeviceGovernor]:
    with DeviceGovernor(policy, DeviceJob(NAME, JobClass.SCAVENGE), engine.pools) as governor:
        engine.pace = governor
        yield governor
        engine.pace = UNPACED


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_more_units_are_in_flight_over_all_threads_than_are_granted(engine: CudaEngine, depth: int) -> None:
    counts: list[int] = []
    in_flight = 0
    lock = threading.Lock()
    with driven(engine, Granting(depth=depth, unit_ns=1)) as governor:
        turn = governor.turn

        def counted(*arguments: object, **more: object) -> object:
            nonlocal in_flight
            made = turn(*arguments, **more)  # type: ignore[arg-type]
            if made is not None:
                end = made.end
                with lock:
                    in_flight += 1
                    counts.append(in_flight)

                def ended(*, is_ok: bool = True) -> None:
                    nonlocal in_flight
                    with lock:
                        in_flight -= 0 if made._is_ended else 1
                    end(is_ok=is_ok)

                made.end = ended  # type: ignore[method-assign]
            return made

        governor.turn = counted  # type: ignore[method-assign,assignment]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda number: check(engine, MIB + number, f"depth {number}"), range(8)))
        assert governor.counts.units == len(counts)
    assert max(counts) <= depth
    assert in_flight == 0


def test_a_busy_job_is_given_way_to_and_the_cpu_goes_on(engine: CudaEngine, folder: Path) -> None:
    hint = DeviceHint(NAME[4:].upper(), folder=str(folder))
    with governed(engine, folder):
        with hint.busy():
            wait_until_true(lambda: check(engine) or engine.counts.moved_calls >= 2)
        launches = len(engine.device.cupy.machine.launches)
        wait_until_true(lambda: check(engine) or len(engine.device.cupy.machine.launches) > launches)
    hint.close()
    assert hint.problem == ""


def test_resident_data_waits_and_is_woken(engine: CudaEngine, folder: Path, machine: Machine) -> None:
    from ohdiff.chunking.device_memory import DeviceMemory

    data = oracle.random_bytes("waits", MIB)
    array = fake_cupy.on_device(machine, data, (MIB,), "|u1")
    memory = DeviceMemory(array.memory.ptr, MIB, 0, array)
    hint = DeviceHint(NAME, folder=str(folder))
    done = threading.Event()

    def work() -> None:
        assert engine.hash_resident(memory, [MIB]) == engine.cpu.hash_chunks(data, packed([MIB]))
        done.set()

    with governed(engine, folder):
        with hint.busy():
            wait_until_true(lambda: check(engine) or engine.counts.moved_calls >= 1)
            threading.Thread(target=work, daemon=True).start()
            assert not done.wait(0.2)
        assert done.wait(PATIENCE)
    hint.close()


@pytest.mark.parametrize("job_class", [JobClass.NORMAL, JobClass.SCAVENGE])
def test_the_lease_goes_to_another_process_and_comes_back(
    engine: CudaEngine, folder: Path, job_class: JobClass
) -> None:
    with governed(engine, folder, job_class):
        check(engine)
        with Agent(folder, JobClass.INTERACTIVE, NAME) as other:
            assert other.ask("acquire") == "held"
            wait_until_true(lambda: check(engine) or engine.counts.moved_calls >= 1)
            other.kill()
        launches = len(engine.device.cupy.machine.launches)
        wait_until_true(lambda: check(engine) or len(engine.device.cupy.machine.launches) > launches)


def test_equal_runs_take_turns_on_the_device(engine: CudaEngine, machine: Machine, folder: Path) -> None:
    other = CudaEngine(SMALL, ID_KEY, CudaOptions(batch_bytes=MIB))
    with governed(engine, folder) as one, governed(other, folder) as two, ThreadPoolExecutor(2) as pool:

        def work(each: CudaEngine) -> None:
            wait_until_true(lambda: check(each) or all(gov.counts.units >= 10 for gov in (one, two)))  # type: ignore[attr-defined]

        list(pool.map(work, (engine, other)))


def test_when_the_governor_is_gone_units_start_as_they_come(engine: CudaEngine, folder: Path) -> None:
    with governed(engine, folder):
        assert engine.pace is not UNPACED
    assert engine.pace is UNPACED
    with Lease(NAME, JobClass.SCAVENGE, folder) as lease:
        assert lease.is_held
        check(engine)


def test_an_engine_without_a_device_is_left_alone(folder: Path, engine: CudaEngine) -> None:
    manners = DeviceManners(JobClass.SCAVENGE, folder=folder)
    with paced_device(CpuEngine(SMALL, ID_KEY), manners) as governor:
        assert governor is None
    engine.disable("it broke")
    with paced_device(engine, manners) as governor:
        assert governor is None


def test_a_device_that_dies_frees_all_who_wait(engine: CudaEngine, folder: Path, machine: Machine) -> None:
    with driven(engine, Granting(unit_ns=1)), ThreadPoolExecutor(4) as pool:
        done = [pool.submit(check, engine, 2 * MIB, f"dies {number}") for number in range(8)]
        wait_until_true(lambda: len(machine.launches) > 100)
        machine.is_dead = True
        for each in done:
            each.result(PATIENCE)
    assert not engine.is_on_device


class Whims:
    """A policy that changes its mind all the time: about grants, units, and memory."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.parked = 0

    def decide(self, now_ns: int, view: View) -> Decision:
        chance = self.chance
        unit_ns, depth = chance.choice((1, MS, 100 * MS)), chance.randint(1, 3)
        is_granted = bool(view.jobs) and chance.random() < 0.8
        trims: tuple[Trim, ...] = ()
        if chance.random() < 0.2:
            trims = (Trim(NAME, chance.randrange(1, 8 * MIB), is_parked=chance.random() < 0.5),)
            self.parked += trims[0].is_parked
        grants = (Grant(NAME, 1, unit_ns, depth, units_max=chance.choice((0, 1))),) if is_granted else ()
        return Decision(grants, trims=trims, wake_ns=now_ns + MS // 4)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_decided_at_whatever_moment_the_results_are_the_same(machine: Machine, seed: int) -> None:
    engine = CudaEngine(SMALL, ID_KEY, CudaOptions(batch_bytes=MIB))
    policy = Whims(seed)
    with DeviceGovernor(policy, DeviceJob(NAME, JobClass.SCAVENGE), engine.pools) as governor:
        engine.pace = governor
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda number: check(engine, MIB // 2 + 3 * number, f"whims {number}"), range(40)))
        assert engine.is_on_device
        assert engine.counts.cpu_calls == 0
    assert policy.parked > 0
    assert governor.counts.units > 0


def test_on_a_device_that_is_lost_nobody_waits(engine: CudaEngine, folder: Path) -> None:
    hint = DeviceHint(NAME, folder=str(folder))
    turns: list[object] = []
    with governed(engine, folder) as governor, hint.busy():
        assert isinstance(governor, DeviceGovernor)
        wait_until_true(lambda: not governor.wait(is_movable=True))

        def ask() -> None:
            turns.append(governor.turn("device: ids", MIB, may_wait=True, is_movable=False))

        waiting = threading.Thread(target=ask)
        waiting.start()
        waiting.join(0.1)
        assert turns == []
        governor.lose()
        waiting.join(PATIENCE)
        assert turns != [None]
        assert not governor.wait(is_movable=True)
        assert governor.turn("host: file", MIB, may_wait=True, is_movable=True) is None
    hint.close()


def test_a_call_that_is_interrupted_ends_its_units(engine: CudaEngine, machine: Machine) -> None:
    with driven(engine, Granting(unit_ns=1, depth=2)) as governor:

        def interrupt(name: str, arguments: tuple[int, ...]) -> None:
            raise KeyboardInterrupt

        machine.on_kernel = interrupt
        with pytest.raises(KeyboardInterrupt):
            check(engine)
        machine.on_kernel = lambda name, arguments: None
        for stream in list(machine.streams):
            stream.queue.clear()
        check(engine)
        assert governor.counts.failed >= 1


def test_a_governed_run_is_replayed_byte_for_byte(engine: CudaEngine, folder: Path) -> None:
    written = io.BytesIO()

    def open_log(device: str, settings: PolicySettings) -> DecisionLog:
        assert device == NAME
        return DecisionLog(written.write, settings, "cuda")

    hint = DeviceHint("machine", folder=str(folder))
    manners = DeviceManners(JobClass.SCAVENGE, folder=folder, open_log=open_log)
    with paced_device(engine, manners), ThreadPoolExecutor(3) as pool:
        for number in range(3):
            list(pool.map(lambda each: check(engine, MIB, f"{each}"), range(3)))
            with hint.busy():
                check(engine, MIB, f"busy {number}")
    hint.close()
    done = replay(written.getvalue().splitlines(keepends=True))
    assert done.difference is None
    assert (done.driver, done.decisions > 3) == ("cuda", True)


def test_the_pace_of_a_device_share(engine: CudaEngine) -> None:
    unit_ns = 100 * MS
    with driven(engine, Granting(unit_ns=unit_ns, gap_ns=unit_ns)) as governor:
        began_ns = clock.monotonic_ns()
        for number in range(4):
            check(engine, 4 * MIB, f"share {number}")
        took_ns = clock.monotonic_ns() - began_ns
        assert governor.counts.served_ns <= took_ns


def test_priorities_by_name() -> None:
    assert manners_of_priority("scavenge", None).job_class is JobClass.SCAVENGE
    with pytest.raises(UsageError, match="unknown priority 'best'"):
        manners_of_priority("best", None)


def test_streams_come_after_those_of_others(engine: CudaEngine, machine: Machine) -> None:
    check(engine)
    assert {stream.priority for stream in machine.streams} == {0}


@pytest.mark.parametrize(
    ("uuid", "told", "name"),
    [
        (bytes(range(1, 17)), None, NAME),
        (bytes(range(1, 17)) + b"more", None, NAME),
        (b"\x01\x02", "Model: \t A\nGPU UUID: \t GPU-01020304-0506-0708-090A-0B0C0D0E0F10\n", NAME),
        (b"\x01\x02", "GPU UUID: \t GPU-????????-????-????-????-????????????\n", "PCI-0000-0a-00.0"),
        (b"", None, "PCI-0000-0a-00.0"),
    ],
)
def test_the_name_that_processes_meet_by(tmp_path: Path, uuid: bytes, told: str | None, name: str) -> None:
    if told is not None:
        (tmp_path / "gpus" / "0000:0a:00.0").mkdir(parents=True)
        (tmp_path / "gpus" / "0000:0a:00.0" / "information").write_text(told)
    assert shared_name(uuid, "0000:0A:00.0", tmp_path) == name


class NVMLError(Exception):
    """As NVML's."""

    value = 6


@pytest.mark.parametrize(("process_samples", "others"), [("none", 0), ("refused", -1), ("some", 400)])
def test_counters_are_those_of_the_management_library(
    monkeypatch: pytest.MonkeyPatch, process_samples: str, others: int
) -> None:
    closed: list[bool] = []

    def samples(handle: str, stamp: int) -> list[SimpleNamespace]:
        if process_samples == "some":
            return [SimpleNamespace(pid=1, smUtil=40, timeStamp=5)]
        error = NVMLError()
        error.value = 6 if process_samples == "none" else 3
        raise error

    library = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_ERROR_NOT_FOUND=6,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: closed.append(True),
        nvmlDeviceGetHandleByPciBusId=lambda bus_id: bus_id,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=37),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(free=5 * MIB),
        nvmlDeviceGetProcessUtilization=samples,
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    signals = open_nvml("0000:0a:00.0")
    assert signals is not None
    assert signals.read(SECOND) == Telemetry(SECOND, 170 * MS, 370, others, 5 * MIB)
    assert signals.read(SECOND + MS) == signals.read(SECOND)
    signals.close()
    assert closed == [True]


def test_memory_is_trimmed_by_what_the_driver_says_is_free(engine: CudaEngine, machine: Machine, folder: Path) -> None:
    check(engine, 4 * MIB)
    held = engine.pools.held_bytes()
    machine.memory_others = machine.memory_total - machine.memory_used - MIB
    with governed(engine, folder):
        wait_until_true(lambda: check(engine) or engine.pools.held_bytes() <= (held + MIB) // 4)
    assert engine.is_on_device
