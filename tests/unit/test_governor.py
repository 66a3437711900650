"""The governor: threads run units while nobody else needs the machine, and wait at their borders else."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ohdiff import clock
from ohdiff.scheduling.core import MS, SECOND, Decision, Grant, Host, JobClass, View
from ohdiff.scheduling.decision_log import DecisionLog, replay
from ohdiff.scheduling.governor import CPU, Governor, GovernorOptions, _alone_ns
from ohdiff.scheduling.hint.device_hint import DeviceHint
from ohdiff.scheduling.lease import Lease
from ohdiff.scheduling.manners import NICE_WITH_DEADLINE, Lowered
from ohdiff.scheduling.pace import UNPACED, PacedExecutor
from ohdiff.scheduling.policies.compose import Arbiter, PolicySettings, build_policy
from ohdiff.scheduling.presence import Presence
from ohdiff.scheduling.signals import ThreadTimes
from ohdiff.scheduling.window import Work

IDLE = Host(cores=4, cores_idle_milli=4000)
PATIENCE = 60.0
SCAVENGING = PolicySettings(arbiter=Arbiter.AUTO)
GIVING_WAY = PolicySettings(arbiter=Arbiter.XSCHED)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runtime"


@contextmanager
def governed(folder: Path | None, job_class: JobClass = JobClass.SCAVENGE, **more: object) -> Iterator[Governor]:
    settings = SCAVENGING if job_class is JobClass.SCAVENGE else GIVING_WAY
    options = GovernorOptions(job_class, frozenset(range(4)), 4, folder, **more)  # type: ignore[arg-type]
    with Governor(build_policy(settings), options, host=lambda now_ns: IDLE) as governor:
        yield governor


class Worker(threading.Thread):
    """Runs one unit, and says when it began."""

    def __init__(self, governor: Governor) -> None:
        super().__init__(daemon=True)
        self._governor = governor
        self.began = threading.Event()
        self.may_end = threading.Event()
        self.start()

    def run(self) -> None:
        with self._governor.unit(1000):
            self.began.set()
            assert self.may_end.wait(PATIENCE)

    def end(self) -> None:
        self.may_end.set()
        self.join(PATIENCE)
        assert not self.is_alive()


def wait_until_true(condition: Callable[[], object]) -> None:
    until_ns = clock.monotonic_ns() + 60 * SECOND
    while not condition():
        assert clock.monotonic_ns() < until_ns
        threading.Event().wait(0.002)


def is_held_up(governor: Governor) -> bool:
    """Whether a unit is kept waiting, for longer than any look at the signals takes."""
    worker = Worker(governor)
    held = not worker.began.wait(0.15)
    worker.may_end.set()
    return held


@pytest.mark.parametrize("job_class", list(JobClass))
def test_alone_every_thread_runs(folder: Path, job_class: JobClass) -> None:
    with governed(folder, job_class) as governor:
        workers = [Worker(governor) for _ in range(4)]
        assert all(worker.began.wait(PATIENCE) for worker in workers)
        for worker in workers:
            worker.end()
        assert governor.counts.units == 4


def test_without_a_folder_there_is_nobody_to_give_way_to() -> None:
    with governed(None) as governor, governor.unit():
        pass


def test_a_folder_that_cannot_be_trusted_is_said(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    os.chmod(tmp_path / "open", 0o777)
    said: list[str] = []
    options = GovernorOptions(JobClass.SCAVENGE, frozenset({0}), 1, tmp_path / "open")
    with Governor(build_policy(SCAVENGING), options, note=said.append, host=lambda _: IDLE) as it, it.unit():
        pass
    assert len(said) == 1
    assert "open to other users" in said[0]


def test_a_scavenger_waits_while_a_job_says_that_it_is_busy(folder: Path) -> None:
    hint = DeviceHint("machine", folder=str(folder))
    with governed(folder) as governor:
        with hint.busy():
            wait_until_true(lambda: is_held_up(governor))
        worker = Worker(governor)
        assert worker.began.wait(PATIENCE)
        worker.end()
    hint.close()


def test_a_normal_run_does_not_wait_for_co_runners(folder: Path) -> None:
    hint = DeviceHint("cpu", folder=str(folder))
    with governed(folder, JobClass.NORMAL) as governor, hint.busy():
        worker = Worker(governor)
        assert worker.began.wait(PATIENCE)
        worker.end()
    hint.close()


@pytest.mark.parametrize("job_class", [JobClass.NORMAL, JobClass.SCAVENGE])
def test_the_restore_goes_before_snapshots(folder: Path, job_class: JobClass) -> None:
    with governed(folder, job_class) as governor:
        with Presence(CPU, JobClass.INTERACTIVE, folder):
            wait_until_true(lambda: is_held_up(governor))
        worker = Worker(governor)
        assert worker.began.wait(PATIENCE)
        worker.end()


def test_equals_that_do_not_scavenge_run_side_by_side(folder: Path) -> None:
    with governed(folder, JobClass.NORMAL) as one, governed(folder, JobClass.NORMAL) as other:
        workers = [Worker(one), Worker(other)]
        assert all(worker.began.wait(PATIENCE) for worker in workers)
        for worker in workers:
            worker.end()


def test_scavengers_take_turns(folder: Path) -> None:
    with governed(folder) as one, governed(folder) as other:
        first = Worker(one)
        assert first.began.wait(PATIENCE)
        second = Worker(other)
        assert not second.began.wait(0.2)
        first.end()
        # The lease goes over at the unit's border although the first one has more to do.
        third = Worker(one)
        assert second.began.wait(PATIENCE)
        second.end()
        assert third.began.wait(PATIENCE)
        third.end()


def test_a_scavenger_that_ended_frees_its_turn(folder: Path) -> None:
    with governed(folder) as governor, governor.unit():
        pass
    with Lease(CPU, JobClass.SCAVENGE, folder) as lease:
        assert lease.is_held


def test_a_unit_that_fails_is_over(folder: Path) -> None:
    with governed(folder) as governor:
        with pytest.raises(ZeroDivisionError), governor.unit():
            _ = 1 / 0
        workers = [Worker(governor) for _ in range(4)]
        assert all(worker.began.wait(PATIENCE) for worker in workers)
        for worker in workers:
            worker.end()


class Allowing:
    """A policy that grants what it is told to."""

    def __init__(self, threads: int, gap_ns: int = 0) -> None:
        self.threads = threads
        self.gap_ns = gap_ns

    def decide(self, now_ns: int, view: View) -> Decision:
        grants = (Grant(CPU, 1, threads=self.threads, gap_ns=self.gap_ns),) if self.threads else ()
        return Decision(grants, wake_ns=now_ns + MS)


def test_as_many_threads_run_as_are_granted_and_the_number_is_followed() -> None:
    policy = Allowing(1)
    options = GovernorOptions(JobClass.SCAVENGE, frozenset(range(4)), 4)
    with Governor(policy, options, host=lambda _: IDLE) as governor:
        workers = [Worker(governor) for _ in range(3)]
        wait_until_true(lambda: any(worker.began.is_set() for worker in workers))
        threading.Event().wait(0.05)
        assert [worker.began.is_set() for worker in workers].count(True) == 1
        policy.threads = 3
        assert all(worker.began.wait(PATIENCE) for worker in workers)
        for worker in workers:
            worker.end()


def test_threads_wait_while_nothing_is_granted_and_the_pause_is_counted() -> None:
    policy = Allowing(0)
    options = GovernorOptions(JobClass.SCAVENGE, frozenset({0}), 1)
    with Governor(policy, options, host=lambda _: IDLE) as governor:
        worker = Worker(governor)
        assert not worker.began.wait(0.05)
        policy.threads = 1
        assert worker.began.wait(PATIENCE)
        worker.end()
        assert governor.counts.paused_ns > 0


@pytest.mark.parametrize("by", ["gap", "share"])
def test_a_share_of_the_time_is_kept_free(by: str) -> None:
    policy = Allowing(1, gap_ns=6 * MS if by == "gap" else 0)
    options = GovernorOptions(JobClass.SCAVENGE, frozenset({0}), 1, share_milli=250 if by == "share" else 1000)
    with Governor(policy, options, host=lambda _: IDLE) as governor:
        began_ns = clock.monotonic_ns()
        worked_ns = 0
        times = ThreadTimes()
        for _ in range(5):
            with governor.unit():
                start_ns = clock.monotonic_ns() - times.read()[1]
                threading.Event().wait(0.004)
                # Waiting for a core is no work.
                worked_ns += clock.monotonic_ns() - times.read()[1] - start_ns
        # Four pauses of three times the unit before each stand between five units.
        assert clock.monotonic_ns() - began_ns >= 3 * worked_ns


def test_leaving_lets_everybody_go() -> None:
    options = GovernorOptions(JobClass.SCAVENGE, frozenset({0}), 1)
    with Governor(Allowing(0), options, host=lambda _: IDLE) as governor:
        worker = Worker(governor)
        assert not worker.began.wait(0.02)
    assert worker.began.wait(PATIENCE)
    worker.end()


@contextmanager
def with_deadline(folder: Path, left_ns: int, work: Work, said: list[str]) -> Iterator[Governor]:
    options = GovernorOptions(
        JobClass.SCAVENGE,
        frozenset({0}),
        1,
        folder,
        deadline_ns=clock.monotonic_ns() + left_ns,
        work=lambda: work,
    )
    with Governor(build_policy(SCAVENGING), options, note=said.append, host=lambda _: IDLE) as governor:
        yield governor


def test_a_busy_job_is_waited_for_while_the_deadline_leaves_time(folder: Path) -> None:
    hint = DeviceHint("machine", folder=str(folder))
    said: list[str] = []
    with hint.busy(), with_deadline(folder, 3600 * SECOND, Work(1 << 30, 1 << 30), said) as governor:
        worker = Worker(governor)
        assert not worker.began.wait(0.5)
    worker.end()
    hint.close()
    assert said == []


def test_a_busy_job_is_waited_for_no_more_when_the_time_is_short(folder: Path) -> None:
    hint = DeviceHint("machine", folder=str(folder))
    said: list[str] = []
    # Just what would do, if the machine were ours: so it is the last call, and nothing is lost yet.
    work = Work(1 << 20, 2 << 30)
    with hint.busy(), with_deadline(folder, 30 * SECOND, work, said) as governor:
        worker = Worker(governor)
        assert worker.began.wait(PATIENCE)
        worker.end()
    hint.close()
    assert said == []


def test_a_window_that_will_be_missed_is_said_once(folder: Path) -> None:
    said: list[str] = []
    options = GovernorOptions(
        JobClass.SCAVENGE,
        frozenset({0}),
        1,
        folder,
        deadline_ns=clock.monotonic_ns() + SECOND,
        work=lambda: Work(1 << 45, 1 << 45),
    )
    with Governor(build_policy(SCAVENGING), options, note=said.append, host=lambda _: IDLE) as governor:
        for _ in range(3):
            with governor.unit(1000):
                pass
    assert len(said) == 1
    assert "deadline will be missed" in said[0]


@pytest.mark.parametrize("job_class", list(JobClass))
def test_a_runs_decisions_can_be_made_again_from_its_log(folder: Path, job_class: JobClass) -> None:
    written = io.BytesIO()
    settings = SCAVENGING if job_class is JobClass.SCAVENGE else GIVING_WAY
    options = GovernorOptions(job_class, frozenset({0}), 2, folder)
    log = DecisionLog(written.write, settings, "cpu")
    hint = DeviceHint("cpu", folder=str(folder))
    with Governor(build_policy(settings), options, log=log, host=lambda _: IDLE) as governor:
        for _ in range(20):
            with governor.unit(1000):
                threading.Event().wait(0.002)
        with hint.busy():
            is_held_up(governor)
    hint.close()
    again = replay(written.getvalue().splitlines(keepends=True))
    assert again.difference is None
    assert again.decisions >= 1


@pytest.mark.parametrize(
    ("took", "ran", "waited", "alone"),
    [(100, 40, 0, 100), (100, 40, 20, 80), (100, 40, 30, 40), (100, 0, 30, 70)],
)
def test_what_a_unit_takes_alone_leaves_out_what_others_took(took: int, ran: int, waited: int, alone: int) -> None:
    assert _alone_ns(took, ran, waited) == alone


def test_only_a_scavenger_is_lowered_and_only_meanwhile() -> None:
    before = os.sched_getscheduler(0)
    with Lowered(JobClass.NORMAL) as state:
        assert not state.is_lowered
        assert os.sched_getscheduler(0) == before
    assert lowered_inside(has_deadline=False) == (os.SCHED_IDLE, 0)
    assert os.sched_getscheduler(0) == before


def test_with_a_deadline_it_is_only_niced() -> None:
    assert lowered_inside(has_deadline=True) == (os.SCHED_OTHER, NICE_WITH_DEADLINE)


def lowered_inside(*, has_deadline: bool) -> tuple[int, int]:
    """Policy and niceness of a thread that was started by one that scavenges."""
    found: list[tuple[int, int]] = []

    def look() -> None:
        with Lowered(JobClass.SCAVENGE, has_deadline=has_deadline) as state:
            assert state.is_lowered
            inner = threading.Thread(target=lambda: found.append(class_of(0)))
            inner.start()
            inner.join()

    run_in_a_thread(look)
    return found[0]


def class_of(thread: int) -> tuple[int, int]:
    return os.sched_getscheduler(thread), os.getpriority(os.PRIO_PROCESS, thread)


def run_in_a_thread(function: Callable[[], None]) -> None:
    """A scheduling class that cannot be left again does no harm to other tests there."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def may_raise() -> bool:
    """Whether this process may give a thread its niceness back."""
    answers: list[bool] = []

    def look() -> None:
        usual = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, usual + 1)
        try:
            os.setpriority(os.PRIO_PROCESS, 0, usual)
        except OSError:
            answers.append(False)
        else:
            answers.append(True)

    run_in_a_thread(look)
    return answers[0]


def test_when_it_presses_all_threads_that_were_lowered_are_raised_and_no_others() -> None:
    if not may_raise():
        pytest.skip("this process may not raise a thread again")
    worker = Idler()
    found: list[tuple[tuple[int, int], tuple[int, int]]] = []

    def look() -> None:
        with Lowered(JobClass.SCAVENGE, has_deadline=True) as state:
            inner = Idler()
            for is_pressed in (False, True, False):
                state.press(is_pressed)
                found.append((class_of(0), class_of(inner.native_id or 0)))
            os.setpriority(os.PRIO_PROCESS, worker.native_id or 0, 5)
            state.press(True)
            found.append((class_of(0), class_of(worker.native_id or 0)))
            inner.end()

    usual = class_of(0)
    run_in_a_thread(look)
    worker.end()
    low = (os.SCHED_OTHER, max(usual[1], NICE_WITH_DEADLINE))
    assert found == [(low, low), (usual, usual), (low, low), (usual, (os.SCHED_OTHER, 5))]


class Idler(threading.Thread):
    """A thread that waits."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._ended = threading.Event()
        self.start()

    def run(self) -> None:
        self._ended.wait(PATIENCE)

    def end(self) -> None:
        self._ended.set()
        self.join(PATIENCE)


def test_calls_of_a_paced_executor_are_units() -> None:
    options = GovernorOptions(JobClass.SCAVENGE, frozenset({0}), 1)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as inner, Governor(Allowing(1), options, host=lambda _: IDLE) as governor:
        paced = PacedExecutor(inner, governor)
        assert [each.result() for each in [paced.submit(pow, 2, 3), paced.submit(int, "7", base=8)]] == [8, 7]
        assert governor.counts.units == 2
    with UNPACED.unit(5):
        pass
