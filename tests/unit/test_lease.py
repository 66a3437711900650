"""The lease: one holder, better classes first, equal ones in turn; the dead and the stopped keep nobody out."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.lease_agent import DEVICE, Agent

from ohdiff import clock
from ohdiff.errors import DeviceError
from ohdiff.scheduling.core import MS, SECOND, JobClass
from ohdiff.scheduling.lease import STALLED_NS_MIN, Lease, Stalled
from ohdiff.scheduling.presence import Presence
from ohdiff.scheduling.shared_page import MAGIC, PAGE_SIZE, VERSION

INTERACTIVE, NORMAL, SCAVENGE = JobClass.INTERACTIVE, JobClass.NORMAL, JobClass.SCAVENGE
# Longer than anything takes that is waited for; only a failing test waits so long.
PATIENCE_NS = 60 * SECOND


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runtime"


def lease_of(folder: Path, job_class: JobClass = SCAVENGE, quantum_ns: int = 0) -> Lease:
    """A lease as another process would have it: nothing is shared but the files."""
    return Lease(DEVICE, job_class, folder, quantum_ns=quantum_ns)


@pytest.fixture
def first(folder: Path) -> Iterator[Lease]:
    lease = lease_of(folder)
    yield lease
    lease.close()


@pytest.fixture
def second(folder: Path) -> Iterator[Lease]:
    lease = lease_of(folder)
    yield lease
    lease.close()


def wait_until_true(condition: object) -> None:
    assert callable(condition)
    until_ns = clock.monotonic_ns() + PATIENCE_NS
    while not condition():
        assert clock.monotonic_ns() < until_ns
        threading.Event().wait(0.002)


class Waiter(threading.Thread):
    """Acquires in the background, and keeps what it got."""

    def __init__(self, lease: Lease) -> None:
        super().__init__(daemon=True)
        self.lease = lease
        self.start()

    def run(self) -> None:
        self.lease.acquire()

    def has_it(self) -> bool:
        return self.lease.is_held

    def is_next(self) -> bool:
        """Whether it stands at the gate; looking whether the lease is free shuts that for a moment, too."""
        return self.lease._place is not None and not _can_lock(self.lease, ".gate")


def test_one_has_it_at_a_time(first: Lease, second: Lease) -> None:
    assert first.acquire(0)
    assert not second.acquire(0)
    first.release()
    assert second.acquire(PATIENCE_NS)
    assert not first.request()


def test_devices_are_leased_apart(first: Lease, folder: Path) -> None:
    assert first.acquire(0)
    with Lease("gpu-2", SCAVENGE, folder) as other:
        assert other.is_held


def test_leaving_the_block_frees_it(folder: Path, second: Lease) -> None:
    with lease_of(folder) as lease:
        assert lease.is_held
    assert second.acquire(0)


def test_nobody_waiting_means_no_yield(first: Lease, second: Lease) -> None:
    first.acquire()
    assert not first.is_wanted()
    assert not first.yield_if_wanted()
    assert first.is_held


@pytest.mark.parametrize(
    ("holder", "waiter", "is_wanted"),
    [
        (SCAVENGE, INTERACTIVE, True),
        (SCAVENGE, NORMAL, True),
        (NORMAL, INTERACTIVE, True),
        (NORMAL, SCAVENGE, False),
        (INTERACTIVE, NORMAL, False),
    ],
)
def test_a_better_class_is_wanted_at_once_and_a_worse_one_never(
    folder: Path, holder: JobClass, waiter: JobClass, is_wanted: bool
) -> None:
    with lease_of(folder, holder, quantum_ns=0) as held:
        waiting = lease_of(folder, waiter)
        waiting.request()
        assert held.is_wanted() is is_wanted
        assert held.peer_class == waiter
        waiting.close()
        assert held.peer_class is None


def test_equals_wait_for_their_turn(folder: Path, second: Lease) -> None:
    now_ns = clock.monotonic_ns()
    held = Lease(DEVICE, SCAVENGE, folder, quantum_ns=50 * MS, now=lambda: now_ns)
    held.acquire()
    second.request()
    assert not held.is_wanted()
    now_ns += 49 * MS
    assert not held.is_wanted()
    now_ns += MS
    assert held.is_wanted()
    held.close()


def test_a_holder_cannot_overtake_whom_it_gave_way_to(first: Lease, second: Lease) -> None:
    first.acquire()
    waiter = Waiter(second)
    wait_until_true(first.is_wanted)
    wait_until_true(waiter.is_next)
    first.release()
    assert not first.acquire(20 * MS)
    wait_until_true(waiter.has_it)
    second.release()
    assert first.acquire(PATIENCE_NS)


def test_the_restore_goes_first_of_all_who_wait(folder: Path, first: Lease, second: Lease) -> None:
    restore = lease_of(folder, INTERACTIVE)
    first.acquire()
    cron = Waiter(second)
    wait_until_true(cron.is_next)
    restoring = Waiter(restore)
    wait_until_true(lambda: first.peer_class == INTERACTIVE)
    first.release()
    wait_until_true(restoring.has_it)
    assert not cron.has_it()
    restore.close()
    wait_until_true(cron.has_it)


def test_whoever_gave_up_waiting_does_not_get_it(first: Lease, second: Lease, folder: Path) -> None:
    first.acquire()
    assert not second.acquire(10 * MS)
    assert first.peer_class is None
    first.release()
    with lease_of(folder) as third:
        assert third.is_held
        assert not second.is_held


def test_whoever_gave_up_waiting_may_come_back(first: Lease, second: Lease) -> None:
    first.acquire()
    for _ in range(5):
        assert not second.acquire(MS)
    assert second._place is not None
    threads = threading.active_count()
    assert not second.acquire(MS)
    assert threading.active_count() == threads
    first.release()
    assert second.acquire(PATIENCE_NS)


def test_an_interrupted_wait_wants_nothing_more(first: Lease, folder: Path) -> None:
    first.acquire()
    second = lease_of(folder)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            second.acquire()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert first.peer_class is None
    second.close()


def test_closing_while_waiting_leaves_the_lease_to_others(first: Lease, folder: Path) -> None:
    first.acquire()
    second = lease_of(folder)
    second.request()
    second.close()
    first.release()
    assert first.acquire(PATIENCE_NS)


def test_a_better_job_at_work_without_a_lease_keeps_worse_ones_out(first: Lease, folder: Path) -> None:
    with Presence(DEVICE, INTERACTIVE, folder):
        assert not first.acquire(0)
        assert first.peer_class == INTERACTIVE
    assert first.acquire(PATIENCE_NS)
    with Presence(DEVICE, NORMAL, folder):
        assert first.is_wanted()
    with Presence(DEVICE, SCAVENGE, folder):
        assert not first.is_wanted()


def test_a_killed_holder_frees_it(first: Lease, folder: Path) -> None:
    with Agent(folder) as agent:
        assert agent.ask("acquire") == "held"
        assert not first.acquire(0)
        agent.kill()
        assert first.acquire(PATIENCE_NS)
        assert first.peer_class is None


def test_a_killed_waiter_is_wanted_no_more(first: Lease, folder: Path) -> None:
    first.acquire()
    with Agent(folder, INTERACTIVE) as agent:
        agent.say("acquire")
        wait_until_true(first.is_wanted)
        agent.kill()
        assert not first.is_wanted()


def test_a_forked_child_does_not_keep_its_parents_lease(first: Lease, folder: Path) -> None:
    with Agent(folder, INTERACTIVE) as agent:
        assert agent.ask("acquire") == "held"
        child = int(agent.ask("fork"))
        try:
            agent.kill()
            assert first.acquire(PATIENCE_NS)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_stopped_holder_is_told_of_once_and_keeps_the_lease(folder: Path) -> None:
    told: list[Stalled] = []
    ahead_ns = 0
    waiter = Lease(DEVICE, INTERACTIVE, folder, on_stalled=told.append, now=lambda: clock.monotonic_ns() + ahead_ns)
    with Agent(folder) as agent:
        assert agent.ask("acquire") == "held"
        agent.stop()
        assert not waiter.request()
        assert told == []
        ahead_ns = 2 * STALLED_NS_MIN
        assert not waiter.request()
        assert not waiter.request()
        assert [(each.device, each.pid) for each in told] == [(DEVICE, agent.pid)]
        assert told[0].silent_ns > STALLED_NS_MIN
        assert not _can_lock(waiter, ".lock")
        agent.go_on()
        assert agent.ask("release") == "free"
        wait_until_true(waiter.request)
    waiter.close()


def test_a_stopped_waiter_keeps_nobody_out(first: Lease, folder: Path) -> None:
    first.acquire()
    with Agent(folder, SCAVENGE) as agent:
        agent.say("acquire")
        wait_until_true(lambda: _stays_locked(first, ".gate"))
        agent.stop()
        first.release()
        # It is the next in turn and holds the gate; the lock itself is free.
        third = lease_of(folder)
        assert third.acquire(PATIENCE_NS)
        third.release()
        assert first.acquire(PATIENCE_NS)
        agent.go_on()
        wait_until_true(first.is_wanted)
        first.release()
        assert agent.hear() == "held"
        third.close()


def test_a_silent_waiter_is_given_way_to_no_more(folder: Path) -> None:
    ahead_ns = 0
    with Lease(DEVICE, SCAVENGE, folder, now=lambda: clock.monotonic_ns() + ahead_ns) as held:
        waiter = lease_of(folder, INTERACTIVE)
        waiter.request()
        assert held.is_wanted()
        ahead_ns = 3 * SECOND
        assert not held.is_wanted()
        waiter.close()


def test_two_cron_jobs_take_turns_and_the_restore_interrupts_both(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "units"
    path.touch()
    with Agent(folder) as one, Agent(folder) as other, Agent(folder, INTERACTIVE) as restore:
        one.say(f"units 60 {path}")
        other.say(f"units 60 {path}")
        pids = {b"%d" % one.pid, b"%d" % other.pid}
        wait_until_true(lambda: {line.split()[1] for line in path.read_bytes().splitlines()} == pids)
        assert int(restore.ask(f"units 20 {path}")) == 0
        assert int(one.hear()) + int(other.hear()) >= 2
    lines = [tuple(line.split()) for line in path.read_bytes().splitlines()]
    assert len(lines) == 2 * (60 + 60 + 20)
    begins, ends = lines[0::2], lines[1::2]
    assert [(b"begin", pid) for _, pid in ends] == begins
    order = [pid for _, pid in begins]
    restored = [place for place, pid in enumerate(order) if pid == b"%d" % restore.pid]
    assert restored == list(range(restored[0], restored[0] + 20))


def test_a_removed_lock_is_made_again_and_met_at(first: Lease, second: Lease, folder: Path) -> None:
    (folder / f"{DEVICE}.lock").unlink()
    assert first.acquire(PATIENCE_NS)
    assert not second.acquire(0)
    assert not _can_lock(second, ".lock")


def test_a_removed_folder_is_made_again(first: Lease, folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    assert first.acquire(PATIENCE_NS)
    other = lease_of(folder)
    assert not other.acquire(0)
    other.close()


def test_a_page_of_another_version_is_left_alone(folder: Path, second: Lease) -> None:
    second.close()
    page = folder / f"{DEVICE}.page"
    newer = (MAGIC + struct.pack("<I", VERSION + 1)).ljust(PAGE_SIZE, b"\x01")
    page.write_bytes(newer)
    first, other = lease_of(folder, quantum_ns=0), lease_of(folder, quantum_ns=0)
    assert "version 2" in first.problem
    assert first.acquire(0)
    assert not other.acquire(0)
    # Nobody can say that it waits, so the lease is offered to all in turn.
    assert first.is_wanted()
    waiter = Waiter(other)
    wait_until_true(waiter.is_next)
    first.release()
    wait_until_true(waiter.has_it)
    assert page.read_bytes() == newer
    first.close()
    other.close()


@given(data=st.binary(max_size=2 * PAGE_SIZE), place=st.integers(0, PAGE_SIZE), is_cut=st.booleans())
def test_a_hostile_page_costs_no_safety(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, place: int, is_cut: bool
) -> None:
    folder = tmp_path_factory.mktemp("hostile") / "runtime"
    first, second = lease_of(folder, quantum_ns=PATIENCE_NS), lease_of(folder, INTERACTIVE)
    first.acquire()
    second.request()
    with open(folder / f"{DEVICE}.page", "r+b") as page:
        page.truncate(place if is_cut else PAGE_SIZE)
        page.seek(place)
        page.write(data)
    assert not second.request()
    assert not _can_lock(second, ".lock")
    first.beat()
    assert first.is_held
    first.release()
    assert second.acquire(PATIENCE_NS)
    second.close()
    third = lease_of(folder)
    assert third.acquire(PATIENCE_NS)
    third.close()
    first.close()


def test_more_processes_than_slots_still_have_one_holder(folder: Path) -> None:
    leases = [lease_of(folder) for _ in range(PAGE_SIZE // 64 + 2)]
    assert [lease.problem != "" for lease in leases].count(True) == 3
    assert leases[-1].acquire(0)
    assert not any(lease.acquire(0) for lease in leases[:-1])
    for lease in leases:
        lease.close()


def test_an_untrusted_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    os.chmod(tmp_path / "open", 0o777)
    with pytest.raises(DeviceError, match="open to other users"):
        lease_of(tmp_path / "open")


def _can_lock(lease: Lease, ending: str) -> bool:
    """Whether a stranger could take one of a lease's files now."""
    fd = os.open(lease._files._folder / f"{DEVICE}{ending}", os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def _stays_locked(lease: Lease, ending: str) -> bool:
    """Whether a file is locked for longer than it takes to look whether it is."""
    for _ in range(5):
        if _can_lock(lease, ending):
            return False
        threading.Event().wait(0.002)
    return True
