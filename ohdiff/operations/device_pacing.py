"""A device's engine and its governor, joined while an operation lasts, since they do not know each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ohdiff.chunking.cuda.placement import DeviceProfile, is_of
from ohdiff.chunking.engine import Accelerator, Engine
from ohdiff.errors import UsageError
from ohdiff.scheduling.core import MS, JobClass
from ohdiff.scheduling.decision_log import DecisionLog
from ohdiff.scheduling.hint.device_hint import runtime_folder
from ohdiff.scheduling.policies.compose import Arbiter, PolicySettings, build_policy

if TYPE_CHECKING:
    from ohdiff.scheduling.device_governor import DeviceGovernor

# Who does not scavenge gives way to better runs of ohdiff only: between units that leave the device no time to be idle.
_WHOLE_UNIT_NS: Final = 10 * MS
_WHOLE_UNITS_DEEP: Final = 4


@dataclass(frozen=True, slots=True)
class DeviceManners:
    """How much an operation may be noticed on its device.

    Parameters
    ----------
    job_class : how much it matters.
    impact_milli_max : what is taken from others at most, when a deadline is near.
    share_milli : the most of its time that the device is used.
    folder : where processes of this user meet, None to meet nobody.
    profile : what was measured on this machine.
    bytes_left : asked for what is still to be worked on.
    open_log : makes the log of decisions, given what the policy is made of.
    note : told in words what a user should know.
    """

    job_class: JobClass
    impact_milli_max: int = 100
    share_milli: int = 1000
    folder: Path | None = None
    profile: DeviceProfile | None = None
    bytes_left: Callable[[], int] = lambda: 1
    open_log: Callable[[str, PolicySettings], DecisionLog | None] = lambda device, settings: None
    note: Callable[[str], None] = lambda message: None


def device_settings(manners: DeviceManners) -> PolicySettings:
    """What the policy of a device is made of."""
    limits = (manners.impact_milli_max, manners.share_milli)
    if manners.job_class is JobClass.SCAVENGE:
        return PolicySettings(Arbiter.AUTO, impact_milli_max=limits[0], share_milli=limits[1])
    return PolicySettings(
        Arbiter.XSCHED,
        unit_ns=_WHOLE_UNIT_NS,
        depth=_WHOLE_UNITS_DEEP,
        impact_milli_max=limits[0],
        share_milli=limits[1],
    )


def manners_of_priority(priority: str, accelerator: Accelerator | None) -> DeviceManners:
    """Those of a call from Python; UsageError for a priority that there is not."""
    names = {each.name.lower(): each for each in JobClass}
    if priority not in names:
        raise UsageError(f"unknown priority {priority!r}", hint=f"priorities are {', '.join(reversed(names))}")
    profile = None if accelerator is None else accelerator.profile
    return DeviceManners(names[priority], folder=Path(runtime_folder()), profile=profile)


@contextmanager
def paced_device(engine: Engine, manners: DeviceManners) -> Iterator[DeviceGovernor | None]:
    """The governor that lets the engine's units start; None for an engine without a device, which nothing is done to.

    One at a time for each engine; afterwards its units start as they come, again.
    """
    if engine.name != "cuda":
        yield None
        return
    # Few engines are on a device, and its modules take time to import.
    from ohdiff.chunking.cuda.engine import CudaEngine
    from ohdiff.chunking.cuda.pacing import UNPACED
    from ohdiff.scheduling.device_driver import DeviceJob
    from ohdiff.scheduling.device_governor import DeviceGovernor
    from ohdiff.scheduling.nvml import open_nvml

    assert isinstance(engine, CudaEngine), "there is one of this name"
    if not engine.is_on_device:
        yield None
        return
    described = engine.device.description
    settings = device_settings(manners)
    job = DeviceJob(
        described.shared_name,
        manners.job_class,
        manners.folder,
        _calibrated(manners.profile, described.name, described.driver_version),
        manners.bytes_left,
    )
    with ExitStack() as stack:
        nvml = open_nvml(described.bus_id)
        if nvml is not None:
            stack.callback(nvml.close)
        governor = DeviceGovernor(
            build_policy(settings),
            job,
            engine.pools,
            counters=None if nvml is None else nvml.read,
            log=manners.open_log(described.shared_name, settings),
            note=manners.note,
        )
        stack.enter_context(governor)
        engine.pace = governor
        stack.callback(setattr, engine, "pace", UNPACED)
        yield governor


def _calibrated(profile: DeviceProfile | None, device: str, driver_version: int) -> dict[str, int]:
    """Bytes a second by where data lies, as the engine calls it."""
    if profile is None or not is_of(profile, device, driver_version):
        return {}
    rates = {"host": profile.pageable_rate, "pinned": profile.pinned_rate, "device": profile.resident_rate}
    return {place: int(rate) for place, rate in rates.items() if rate >= 1}
