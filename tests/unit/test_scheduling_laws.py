"""Laws of every policy over any view: purity, units within depth, priority at unit borders, memory that comes back."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ohdiff.scheduling.core import (
    MS,
    SHORT_UNITS_DEEP,
    Activity,
    CoRunner,
    Decision,
    DeviceKind,
    DeviceView,
    Host,
    Job,
    JobClass,
    Telemetry,
    UnitReport,
    View,
    canonical,
)
from ohdiff.scheduling.policies.compose import Arbiter, Order, PolicySettings, build_policy
from ohdiff.scheduling.policies.placement import Where

NOW_NS = 100_000 * MS
PAST = st.integers(0, NOW_NS)
SMALL = st.integers(0, 1000)
JOBS = st.builds(
    Job,
    job=st.integers(1, 5),
    job_class=st.sampled_from(JobClass),
    arrived_ns=PAST,
    bytes_left=st.integers(1, 1 << 50),
    predicted_ns=PAST,
    served_ns=PAST,
    small_bytes_left=st.just(0),
    deadline_ns=st.none() | st.integers(NOW_NS, 2 * NOW_NS),
)
REPORTS = st.builds(UnitReport, PAST, st.integers(1, 9 * MS), st.integers(1, 3 * MS), st.booleans())
TELEMETRY = st.builds(
    Telemetry, PAST, st.integers(1, 1000 * MS), SMALL, st.integers(-1, 1000), st.integers(-1, 1 << 40)
)
DEVICES = st.builds(
    DeviceView,
    device=st.sampled_from(["gpu0", "gpu1"]),
    kind=st.sampled_from([DeviceKind.CUDA, DeviceKind.EMULATED]),
    rate_bytes_per_s=st.integers(1, 1 << 40),
    is_usable=st.booleans(),
    is_leased=st.booleans(),
    peer_class=st.none() | st.sampled_from(JobClass),
    last_unit=st.none() | REPORTS,
    telemetry=st.none() | TELEMETRY,
    held_bytes=st.integers(0, 1 << 36),
    served_ns=PAST,
)
CPU = st.builds(
    DeviceView, st.just("cpu"), st.just(DeviceKind.CPU), st.integers(1, 1 << 40), threads_max=st.integers(1, 64)
)
CO_RUNNERS = st.builds(
    CoRunner,
    name=st.sampled_from(["a", "b", "c"]),
    device=st.sampled_from(["gpu0", "gpu1", "cpu"]),
    activity=st.sampled_from(Activity),
    since_ns=PAST,
    steps=SMALL,
    step_ns=st.integers(0, 1000 * MS),
)
HOSTS = st.builds(Host, st.integers(1, 64), st.integers(0, 64_000), SMALL, SMALL, SMALL)
VIEWS = st.builds(
    lambda jobs, devices, cpus, co_runners, host: View(
        tuple(sorted(jobs, key=lambda each: each.job)),
        tuple(sorted([*devices, *cpus], key=lambda each: each.device)),
        tuple(sorted(co_runners, key=lambda each: each.name)),
        host,
    ),
    st.lists(JOBS, max_size=5, unique_by=lambda each: each.job),
    st.lists(DEVICES, max_size=2, unique_by=lambda each: each.device),
    st.lists(CPU, max_size=1),
    st.lists(CO_RUNNERS, max_size=3, unique_by=lambda each: each.name),
    HOSTS,
)
SETTINGS = st.builds(
    PolicySettings,
    arbiter=st.sampled_from(Arbiter),
    order=st.sampled_from(Order),
    where=st.sampled_from(Where),
    unit_ns=st.integers(1, 50 * MS),
    depth=st.integers(1, 16),
    beside_ns=st.integers(1, 50 * MS),
    quiet_ns=st.integers(0, 20 * MS),
    impact_milli_max=st.integers(0, 1000),
    share_milli=st.integers(1, 1000),
)


def twice(settings: PolicySettings, view: View) -> tuple[View, Decision]:
    """A second decision a little later, with what the first wanted to remember; and the view it was made from."""
    policy = build_policy(settings)
    later = replace(view, memory=policy.decide(NOW_NS, view).memory)
    return later, policy.decide(NOW_NS + MS, later)


@given(SETTINGS, VIEWS)
def test_a_policy_is_a_function_of_time_and_view(settings: PolicySettings, view: View) -> None:
    later, decision = twice(settings, view)
    assert canonical(build_policy(settings).decide(NOW_NS + MS, later)) == canonical(decision)


@given(SETTINGS, VIEWS)
def test_grants_are_for_usable_devices_and_jobs_that_are_there(settings: PolicySettings, view: View) -> None:
    _, decision = twice(settings, view)
    usable = {device.device: device for device in view.devices if device.is_usable}
    names = [grant.device for grant in decision.grants]
    assert names == sorted(set(names))
    for grant in decision.grants:
        assert grant.device in usable
        assert grant.job in {job.job for job in view.jobs}
        assert 1 <= grant.depth <= max(settings.depth, SHORT_UNITS_DEEP)
        assert 1 <= grant.threads <= usable[grant.device].threads_max
        assert grant.gap_ns >= 0
        limits = (settings.beside_ns, settings.stretch.short_ns)
        depth = max(settings.depth, SHORT_UNITS_DEEP)
        lengths = [settings.unit_ns, *(max(1, each // depth) for each in limits)]
        assert grant.unit_ns * grant.depth <= settings.unit_ns * settings.depth or grant.unit_ns == 1 or grant.is_probe
        assert grant.unit_ns in ([settings.stretch.probe_ns] if grant.is_probe else lengths)
        assert grant.is_probe or grant.unit_ns <= settings.unit_ns


@given(SETTINGS, VIEWS)
def test_beside_a_busy_co_runner_that_tells_only_the_share_by_right_is_taken(
    settings: PolicySettings, view: View
) -> None:
    telling = replace(settings, arbiter=Arbiter.AUTO)
    _, decision = twice(telling, view)
    busy = {each.device for each in view.co_runners if each.activity is Activity.BUSY}
    has_right = any(job.deadline_ns is not None or job.job_class is JobClass.INTERACTIVE for job in view.jobs)
    for grant in decision.grants:
        if grant.device in busy and grant.device != "cpu":
            assert has_right
            assert grant.unit_ns * 1000 <= (telling.impact_milli_max + 1) * (grant.unit_ns + grant.gap_ns + 1)


@given(SETTINGS, VIEWS)
def test_an_interactive_job_is_never_behind_another_at_a_units_border(settings: PolicySettings, view: View) -> None:
    both = replace(settings, where=Where.BOTH)
    _, decision = twice(both, view)
    interactive = {job.job for job in view.jobs if job.job_class is JobClass.INTERACTIVE}
    if interactive:
        assert all(grant.job in interactive for grant in decision.grants)


@given(SETTINGS, VIEWS)
def test_the_share_of_a_device_is_never_passed(settings: PolicySettings, view: View) -> None:
    _, decision = twice(settings, view)
    for grant in decision.grants:
        if grant.device != "cpu" and not grant.is_probe:
            assert grant.unit_ns * 1000 <= settings.share_milli * (grant.unit_ns + grant.gap_ns + 1)


@given(SETTINGS, VIEWS)
def test_no_policy_asks_to_be_asked_at_once_for_ever(settings: PolicySettings, view: View) -> None:
    _, decision = twice(settings, view)
    assert decision.wake_ns is None or decision.wake_ns > NOW_NS + MS


@given(SETTINGS, VIEWS)
def test_memory_is_named_once_and_sorted(settings: PolicySettings, view: View) -> None:
    _, decision = twice(settings, view)
    names = [name for name, _ in decision.memory]
    assert names == sorted(set(names))
