"""Where to compute: a profile of measured rates, and the judgement of what pays. Pure; storing is left to others."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Final

PROFILE_VERSION: Final = 2
# A device that is hardly faster is left alone: it takes memory and time from others, and this is what measuring errs.
_WORTH: Final = 1.2
# Level 1 makes a source tree 1.13 times as large as level 3, at 1.5 times the speed: what a device gains has to cost
# less than that.
_SIZE_BOUND: Final = 1.1


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """What was measured on one machine; rates in bytes a second, of plain bytes that are cut and hashed.

    Parameters
    ----------
    device, architecture, driver_version : the device that it is true of, and the driver.
    processors : that the process could use.
    copy_rate : pinned host memory to the device.
    pageable_rate : from ordinary host memory, through pinned memory, to cuts and ids.
    pinned_rate : from pinned host memory to cuts and ids.
    resident_rate : data that lies on the device to cuts and ids.
    cpu_rate : the CPU's engine on one thread.
    cpu_rate_all : on all processors at once.
    compress_rate : blocks from ordinary host memory to zstd frames there, by the device; 0 where it cannot.
    cpu_compress_rate : the same by all processors, at the default level.
    compress_size : how large the device's frames are beside the CPU's, which count as 1.
    """

    device: str
    architecture: str
    driver_version: int
    processors: int
    copy_rate: float
    pageable_rate: float
    pinned_rate: float
    resident_rate: float
    cpu_rate: float
    cpu_rate_all: float
    compress_rate: float = 0.0
    cpu_compress_rate: float = 0.0
    compress_size: float = 0.0
    version: int = PROFILE_VERSION

    def as_fields(self) -> dict[str, Any]:
        """For storing."""
        return asdict(self)

    @classmethod
    def of_fields(cls, values: object) -> DeviceProfile | None:
        """What was stored; None if it is of another version, or no profile."""
        if not isinstance(values, dict) or values.get("version") != PROFILE_VERSION:
            return None
        kinds = {"str": (str,), "int": (int,), "float": (int, float)}
        for field in fields(cls):
            value = values.get(field.name)
            if not isinstance(value, kinds[str(field.type)]) or isinstance(value, bool):
                return None
        return cls(**{field.name: values[field.name] for field in fields(cls)})


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a device pays, and why."""

    pays: bool
    reason: str


def judge(profile: DeviceProfile | None, *, threads: int) -> Judgement:
    """Whether files, which come through ordinary host memory, are faster done on the device.

    Parameters
    ----------
    threads : of the CPU that would cut and hash instead.
    """
    if profile is None:
        return Judgement(False, "no CUDA device was measured on this machine (ohdiff calibrate does)")
    cpu_rate = min(profile.cpu_rate * max(1, threads), profile.cpu_rate_all)
    device_rate = min(profile.pageable_rate, profile.copy_rate)
    compared = f"{_gigabytes(device_rate)} on {profile.device}, {_gigabytes(cpu_rate)} on {threads} CPU threads"
    if device_rate > _WORTH * cpu_rate:
        return Judgement(True, f"measured faster: {compared}")
    return Judgement(False, f"measured no faster on the device: {compared}")


def judge_compression(profile: DeviceProfile | None) -> Judgement:
    """Whether a device compresses blocks clearly faster than all processors do, and hardly larger."""
    if profile is None or not profile.compress_rate:
        return Judgement(False, "no device that compresses was measured on this machine (ohdiff calibrate does)")
    compared = (
        f"{_gigabytes(profile.compress_rate)} on {profile.device}, {_gigabytes(profile.cpu_compress_rate)} on "
        f"{profile.processors} CPU threads, {profile.compress_size:.2f} times their size"
    )
    if profile.compress_size > _SIZE_BOUND:
        return Judgement(False, f"measured too large on the device: {compared}")
    if profile.compress_rate > _WORTH * profile.cpu_compress_rate:
        return Judgement(True, f"measured faster: {compared}")
    return Judgement(False, f"measured no faster on the device: {compared}")


def is_of(profile: DeviceProfile, device: str, driver_version: int) -> bool:
    """Whether a profile is true of a device as it is now."""
    return (profile.device, profile.driver_version) == (device, driver_version)


def _gigabytes(rate: float) -> str:
    return f"{rate / 1e9:.1f} GB/s"
