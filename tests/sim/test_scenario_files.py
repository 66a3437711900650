"""Scenario files: every shipped one is good, and a bad one is refused by the name of the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from ohdiff.errors import UsageError
from ohdiff.scheduling.core import MS, SECOND
from ohdiff.scheduling.simulator.scenario import load_scenario

SHIPPED = sorted((Path(__file__).parents[2] / "bench" / "scenarios").glob("*.toml"))
GOOD = """
[scenario]
name = "good"
duration_s = 1
[machine]
cores = 2
use_cpu = true
[[accelerator]]
name = "gpu0"
[[co_runner]]
kind = "queue"
device = "gpu0"
per_s = 10
service_ms = 5
[[job]]
size_gb = 1
[policy]
unit_ms = 2
"""


def load(folder: Path, text: str) -> None:
    path = folder / "scenario.toml"
    path.write_text(text)
    load_scenario(path)


@pytest.mark.parametrize("path", SHIPPED, ids=[path.stem for path in SHIPPED])
def test_a_shipped_scenario_is_good_and_named_as_its_file(path: Path) -> None:
    assert load_scenario(path).name == path.stem


def test_there_are_shipped_scenarios() -> None:
    assert len(SHIPPED) >= 8


@pytest.mark.parametrize(
    ("old", "new", "key", "message"),
    [
        ('name = "good"', "", "scenario.name", "is missing"),
        ("duration_s = 1", "", "scenario.duration_s", "is missing"),
        ("duration_s = 1", "duration_s = 0", "scenario.duration_s", "between"),
        ("duration_s = 1", 'duration_s = "long"', "scenario.duration_s", "must be a number"),
        ("duration_s = 1", "duration_s = 1\nspeed = 2", "scenario.speed", "not known"),
        ("cores = 2", "cores = 2.5", "machine.cores", "whole"),
        ("cores = 2", "cores = true", "machine.cores", "must be a number"),
        ("use_cpu = true", "use_cpu = 1", "machine.use_cpu", "true or false"),
        ('name = "gpu0"', 'name = "cpu"', "accelerator", "names of their own"),
        ('name = "gpu0"', 'name = "gpu0"\nsize = 3', r"accelerator\[0\].size", "not known"),
        ('kind = "queue"', 'kind = "cat"', r"co_runner\[0\].kind", "server, queue, training, duty"),
        ('kind = "queue"', 'kind = "duty"', r"co_runner\[0\].per_s", "not known"),
        ('kind = "queue"', 'kind = "server"', r"co_runner\[0\].trace", "or model must be given"),
        ('kind = "queue"', 'kind = "server"\nmodel = "x"', r"co_runner\[0\].model", "azure-code"),
        ("per_s = 10", "per_s = 200", r"co_runner\[0\].per_s", "grow for ever"),
        ('device = "gpu0"', 'device = "gpu9"', r"co_runner\[0\].device", "cpu, gpu0"),
        ("size_gb = 1", "", r"job\[0\].size_gb", "is missing"),
        ("size_gb = 1", 'size_gb = 1\nclass = "vip"', r"job\[0\].class", "interactive, normal, scavenge"),
        ("size_gb = 1", "size_gb = 1\narrives_s = 9\ndeadline_s = 8", r"job\[0\].deadline_s", "after its arrival"),
        ("size_gb = 1", 'size_gb = 1\ndevice = "tpu"', r"job\[0\].device", "cpu, gpu0"),
        ("size_gb = 1", "size_gb = 1\nsmall_files_pct = 101", r"job\[0\].small_files_pct", "at most 100"),
        ("unit_ms = 2", "unit_ms = 0", "policy.unit_ms", "between"),
        ("unit_ms = 2", 'arbiter = "fair"', "policy.arbiter", "auto, priority, stretch"),
        ("unit_ms = 2", "short_ms = 0", "policy.short_ms", "between"),
        ("unit_ms = 2", "beside_ms = 0", "policy.beside_ms", "between"),
        ("unit_ms = 2", "max_impact_pct = 200", "impact_milli_max", "must be"),
        ("[policy]", "[policies]", "policies", "not known"),
        ("[machine]", "[[machine]]", "machine", "must be a table"),
        ("[[job]]", "[job]", "job", r"\[\[job\]\]"),
        ("[policy]", "[policy", "", "not TOML"),
    ],
)
def test_a_bad_scenario_is_refused_by_the_name_of_its_key(
    tmp_path: Path, old: str, new: str, key: str, message: str
) -> None:
    load(tmp_path, GOOD)
    assert old in GOOD
    with pytest.raises(UsageError, match=rf"scenario\.toml.*{key}.*{message}"):
        load(tmp_path, GOOD.replace(old, new, 1))


def test_a_keys_place_in_the_settings_follows_its_name(tmp_path: Path) -> None:
    keys = "short_ms = 0.75\ncalm_s = 3\nprobe_ms = 0.5\npause_min_ms = 30\npause_max_ms = 90\nbeside_ms = 1.5"
    path = tmp_path / "scenario.toml"
    path.write_text(GOOD + keys)
    settings = load_scenario(path).settings
    limits = settings.stretch
    assert (settings.unit_ns, settings.beside_ns) == (2 * MS, 1_500_000)
    assert (limits.short_ns, limits.calm_ns, limits.probe_ns) == (750_000, 3 * SECOND, 500_000)
    assert (limits.pause_ns_min, limits.pause_ns_max) == (30 * MS, 90 * MS)


def test_an_unknown_key_of_the_policy_is_answered_with_the_keys_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, GOOD.replace("unit_ms = 2", "units_ms = 2"))
    known = caught.value.hint.removeprefix("known: ").split(", ")
    assert len(known) == 17
    for key in known:  # each is one that can be read, if perhaps with another value
        value = {"arbiter": '"none"', "order": '"arrival"', "where": '"cpu"'}.get(key, "19")
        load(tmp_path, GOOD.replace("unit_ms = 2", f"{key} = {value}"))


@pytest.mark.parametrize("windows", ["[]", "[[0]]", "[[0, 101]]", "[[5, 1]]", "[[0, 1], [0, 2]]", "3", "[[0, true]]"])
def test_bad_windows_of_a_duty_cycle_are_refused(tmp_path: Path, windows: str) -> None:
    text = GOOD.replace('kind = "queue"', 'kind = "duty"').replace("per_s = 10\nservice_ms = 5", f"windows = {windows}")
    with pytest.raises(UsageError, match=r"co_runner\[0\]\.windows"):
        load(tmp_path, text)


def test_two_co_runners_need_two_names(tmp_path: Path) -> None:
    block = GOOD[GOOD.index("[[co_runner]]") : GOOD.index("[[job]]")]
    with pytest.raises(UsageError, match="same name"):
        load(tmp_path, GOOD + block)


def test_a_machine_without_a_device_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no device"):
        load(tmp_path, '[scenario]\nname = "x"\nduration_s = 1\n[machine]\nuse_cpu = false\n')


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        load_scenario(tmp_path / "nowhere.toml")
