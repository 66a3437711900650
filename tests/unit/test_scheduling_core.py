"""The shared types of the scheduling core: one JSON form, one hash, and what the settings refuse."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import msgspec
import pytest

from ohdiff.errors import UsageError
from ohdiff.scheduling.core import (
    MS,
    Activity,
    CoRunner,
    DeviceKind,
    DeviceView,
    Host,
    Job,
    JobClass,
    UnitReport,
    View,
    canonical,
    view_hash,
)
from ohdiff.scheduling.policies.compose import PolicySettings

VIEW = View(
    jobs=(Job(1, JobClass.SCAVENGE, 5, 1000, deadline_ns=9),),
    devices=(DeviceView("gpu0", DeviceKind.CUDA, 7, last_unit=UnitReport(4, 3, 2)),),
    co_runners=(CoRunner("llm", "gpu0", Activity.BUSY, 3),),
    host=Host(cores=2),
    memory=(("stretch:gpu0", (1, -1)),),
)


def test_a_views_json_keeps_the_order_of_its_fields_and_has_no_spaces() -> None:
    assert canonical(VIEW) == (
        b'{"jobs":[{"job":1,"job_class":2,"arrived_ns":5,"bytes_left":1000,"predicted_ns":0,"served_ns":0,'
        b'"small_bytes_left":0,"deadline_ns":9,"device":""}],'
        b'"devices":[{"device":"gpu0","kind":"cuda","rate_bytes_per_s":7,"is_usable":true,"is_leased":true,'
        b'"peer_class":null,"in_flight":0,"last_unit":{"ended_ns":4,"took_ns":3,"expected_ns":2,"is_probe":false,'
        b'"is_ok":true},"telemetry":null,"held_bytes":0,"served_ns":0,"threads_max":1}],'
        b'"co_runners":[{"name":"llm","device":"gpu0","activity":"busy","since_ns":3,"steps":0,"step_ns":0}],'
        b'"host":{"cores":2,"cores_idle_milli":1000,"cpu_pressure_milli":0,"io_pressure_milli":0,'
        b'"memory_pressure_milli":0},"memory":[["stretch:gpu0",[1,-1]]]}'
    )


def test_a_views_hash_is_that_of_its_json_and_frozen() -> None:
    assert view_hash(VIEW) == "dfc3aef58e1838f3"


def test_json_gives_the_same_view_back() -> None:
    assert msgspec.json.decode(canonical(VIEW), type=View) == VIEW


@pytest.mark.parametrize(
    "changed",
    [
        replace(VIEW, jobs=()),
        replace(VIEW, host=Host(cores=3)),
        replace(VIEW, memory=(("stretch:gpu0", (1, 0)),)),
        replace(VIEW, co_runners=(replace(VIEW.co_runners[0], since_ns=4),)),
    ],
)
def test_any_change_of_a_view_changes_its_hash(changed: View) -> None:
    assert view_hash(changed) != view_hash(VIEW)


def test_views_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        VIEW.jobs = ()  # type: ignore[misc]


def test_stretch_is_time_against_time_alone() -> None:
    report = UnitReport(ended_ns=10 * MS, took_ns=3 * MS, expected_ns=2 * MS)
    assert report.stretch_milli == 1500
    assert report.started_ns == 7 * MS


@pytest.mark.parametrize(
    "wrong",
    [{"unit_ns": 0}, {"depth": 0}, {"quiet_ns": -1}, {"impact_milli_max": 1001}, {"share_milli": 0}, {"nice": 20}],
)
def test_settings_out_of_bounds_are_refused_by_name(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        PolicySettings(**wrong)
