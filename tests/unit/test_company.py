"""When threads take breaks: while others use cores, wait for one, or say that they are busy, and for a while after."""

from __future__ import annotations

import os
import threading

import pytest

from ohdiff.breaks import NO_BREAKS, BreakTimes
from ohdiff.scheduling.company import BREAKS, Company
from ohdiff.scheduling.core import MS, SECOND, Activity, CoRunner, Host
from ohdiff.scheduling.cores import OwnCores

# Until something is known others are taken to be there.
AT_FIRST = [BREAKS, NO_BREAKS]
QUIET = Host(cores=4, cores_idle_milli=3960)


def in_turn(company: Company, host: Host, seconds: float, start_ns: int = 0) -> int:
    """Ten looks a second; the time after the last."""
    now_ns = start_ns
    for _ in range(round(seconds * 10)):
        company.look(now_ns, host)
        now_ns += 100 * MS
    return now_ns


@pytest.fixture
def taken() -> list[BreakTimes]:
    return []


class Cores(OwnCores):
    """Writes down how many are used."""

    def __init__(self) -> None:
        super().__init__(frozenset(range(4)))
        self.used: list[int] = []

    def use(self, count: int) -> None:
        self.used.append(count)


@pytest.fixture
def cores() -> Cores:
    return Cores()


@pytest.fixture
def company(taken: list[BreakTimes], cores: Cores) -> Company:
    return Company(cores, taken.append)


def test_a_machine_with_its_own_small_jobs_is_no_company(company: Company, taken: list[BreakTimes]) -> None:
    in_turn(company, QUIET, 60)
    assert not company.is_there
    assert taken == AT_FIRST


@pytest.mark.parametrize(
    "host", [Host(cores=4, cores_idle_milli=3700), Host(cores=4, cores_idle_milli=4000, cpu_pressure_milli=30)]
)
def test_who_uses_cores_or_waits_for_one_is_company(company: Company, taken: list[BreakTimes], host: Host) -> None:
    in_turn(company, host, 2)
    assert company.is_there
    assert taken == [BREAKS]


def test_one_moment_is_none(company: Company, taken: list[BreakTimes]) -> None:
    now_ns = in_turn(company, QUIET, 2)
    company.look(now_ns, Host(cores=4, cores_idle_milli=3600))
    in_turn(company, QUIET, 5, now_ns + 100 * MS)
    assert taken == AT_FIRST


def test_company_stays_for_a_while_and_goes(company: Company, taken: list[BreakTimes]) -> None:
    now_ns = in_turn(company, Host(cores=4, cores_idle_milli=3000), 3)
    now_ns = in_turn(company, QUIET, 9, now_ns)
    assert taken == [BREAKS]
    in_turn(company, QUIET, 6, now_ns)
    assert taken == [BREAKS, NO_BREAKS]


def test_a_word_is_enough(company: Company, taken: list[BreakTimes]) -> None:
    now_ns = in_turn(company, QUIET, 2)
    company.look(now_ns, QUIET, [CoRunner("1.0.0", "cpu", Activity.BUSY, 0, 0, 0)])
    assert taken == [*AT_FIRST, BREAKS]


def test_an_idle_co_runner_is_no_company(company: Company, taken: list[BreakTimes]) -> None:
    idle = CoRunner("1.0.0", "cpu", Activity.IDLE, 0, 0, 0)
    for second in range(5):
        company.look(second * SECOND, QUIET, [idle])
    assert taken == AT_FIRST


def test_nobody_takes_breaks_when_we_are_done(company: Company, taken: list[BreakTimes]) -> None:
    in_turn(company, Host(cores=4, cores_idle_milli=0), 3)
    company.leave()
    company.leave()
    assert taken == [BREAKS, NO_BREAKS]


def test_cores_that_others_use_are_left_to_them(company: Company, cores: Cores) -> None:
    now_ns = in_turn(company, QUIET, 2)
    # Nothing was known at first.
    assert cores.used == [1, 4]
    now_ns = in_turn(company, Host(cores=4, cores_idle_milli=1950), 3, now_ns)
    assert cores.used == [1, 4, 2]
    now_ns = in_turn(company, Host(cores=4, cores_idle_milli=3800), 3.5, now_ns)
    assert cores.used == [1, 4, 2, 3]
    in_turn(company, QUIET, 15, now_ns)
    assert cores.used[4:] == [4, 4]


def test_at_least_one_core_is_used_and_all_when_we_are_done(company: Company, cores: Cores) -> None:
    in_turn(company, Host(cores=4, cores_idle_milli=0), 3)
    company.leave()
    company.leave()
    assert cores.used == [1, 4]


def test_all_threads_keep_to_the_cores_of_now() -> None:
    mine = os.sched_getaffinity(0)
    cores = OwnCores(frozenset(mine))
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait)
    thread.start()
    assert thread.native_id is not None
    try:
        cores.use(1)
        assert os.sched_getaffinity(0) == os.sched_getaffinity(thread.native_id) == {max(mine)}
    finally:
        cores.use_all()
        assert os.sched_getaffinity(0) == os.sched_getaffinity(thread.native_id) == mine
        is_over.set()
        thread.join()
