"""The shared types of the scheduling core: what a policy sees (View), what it says (Decision), and what drivers use.

A policy is a pure function of the time and an immutable view; the state that it wants back stands in the view as
`memory`. Times are integer nanoseconds of one monotonic clock, shares are integers of a thousandth ("milli"), ids are
small integers for jobs and names for devices. The real loop and the simulator drive the same policies by the same
contract, which `Decision` states. Implements section 9 of docs/design.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Protocol

import msgspec
import xxhash

US = 1_000
MS = 1_000_000
SECOND = 1_000_000_000

UNIT_NS = 2 * MS
UNITS_DEEP = 1
SHORT_UNITS_DEEP = 2  # of units that were shortened: what passes between two is no longer small beside one of them
BESIDE_NS = MS  # the most in flight beside a co-runner that says what it does
QUIET_NS = 2 * MS  # hysteresis: a co-runner's pause shorter than this is not used


class DeviceKind(StrEnum):
    """What sort of device units run on."""

    CUDA = "cuda"
    CPU = "cpu"
    EMULATED = "emulated"
    SIMULATED = "simulated"


class JobClass(IntEnum):
    """How much a job matters; a lower number goes first."""

    INTERACTIVE = 0
    NORMAL = 1
    SCAVENGE = 2


class Activity(StrEnum):
    """What a co-runner says of itself, or what is known of it."""

    UNKNOWN = "unknown"
    IDLE = "idle"
    BUSY = "busy"
    ASLEEP = "asleep"  # has given its device memory back and says so


@dataclass(frozen=True, slots=True)
class Job:
    """One of our own pieces of work: a snapshot, a restore, a check.

    Parameters
    ----------
    job : its number, unique within a view.
    job_class : its importance among our jobs.
    arrived_ns : when it came.
    bytes_left : plain bytes that are still to be worked on.
    predicted_ns : device time that it was predicted to take in all when it arrived, 0 for unknown.
    served_ns : device time that it has had.
    small_bytes_left : the part of `bytes_left` in files too small to be worth a device's launch.
    deadline_ns : when it must have ended, None for no window.
    device : the only device that may run it, "" for any.
    """

    job: int
    job_class: JobClass
    arrived_ns: int
    bytes_left: int
    predicted_ns: int = 0
    served_ns: int = 0
    small_bytes_left: int = 0
    deadline_ns: int | None = None
    device: str = ""


@dataclass(frozen=True, slots=True)
class UnitReport:
    """The last unit that ended on a device.

    Parameters
    ----------
    ended_ns : when its end was seen.
    took_ns : from its submission, or the end of the unit before it where that came later, to its end as seen by the
        host; less the copies' own time where that is known.
    expected_ns : what it takes alone on the device, by calibration.
    is_probe : whether it was sent to look for a co-runner.
    is_ok : False when the device failed it; the unit was dropped and will be done again.
    """

    ended_ns: int
    took_ns: int
    expected_ns: int
    is_probe: bool = False
    is_ok: bool = True

    @property
    def started_ns(self) -> int:
        """When it was submitted."""
        return self.ended_ns - self.took_ns

    @property
    def stretch_milli(self) -> int:
        """How much longer than alone, 1000 for not at all."""
        return self.took_ns * 1000 // max(1, self.expected_ns)


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What the vendor's counters say of a device; one window, our own work included.

    Parameters
    ----------
    at_ns, window_ns : end and length of the window.
    busy_milli : share of the window in which any kernel was resident, ours included.
    others_milli : the same for other processes only, -1 where that is not told.
    free_bytes : device memory that is free, -1 for unknown.
    """

    at_ns: int
    window_ns: int
    busy_milli: int = 0
    others_milli: int = -1
    free_bytes: int = -1


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device as a policy sees it.

    Parameters
    ----------
    device : its name: "cpu", or the accelerator's UUID.
    kind : what sort it is.
    rate_bytes_per_s : what our pipeline does on it alone, by calibration.
    is_usable : False while it is marked bad after an error.
    is_leased : whether this process holds its lease; True where no lease is needed.
    peer_class : the best class among other ohdiff processes that want the lease, None for no one.
    in_flight : units that were submitted and have not ended.
    last_unit : the newest report, or of those since the last decision the one that was stretched most; None before the
        first.
    telemetry : the newest counters, None where there are none.
    held_bytes : device memory that we hold.
    served_ns : device time that our units have had on it so far, each counted as it would take alone.
    threads_max : the most threads of ours that may run on it; 1 but for a CPU.
    """

    device: str
    kind: DeviceKind
    rate_bytes_per_s: int
    is_usable: bool = True
    is_leased: bool = True
    peer_class: JobClass | None = None
    in_flight: int = 0
    last_unit: UnitReport | None = None
    telemetry: Telemetry | None = None
    held_bytes: int = 0
    served_ns: int = 0
    threads_max: int = 1


@dataclass(frozen=True, slots=True)
class CoRunner:
    """Another job on a device, as far as it tells of itself.

    Parameters
    ----------
    name : what it calls itself.
    device : where it runs.
    activity : what it says it does; UNKNOWN for one that only reports steps.
    since_ns : since when.
    steps : steps (requests, iterations) that it has reported.
    step_ns : mean time of its recent steps, 0 for no report.
    """

    name: str
    device: str
    activity: Activity
    since_ns: int
    steps: int = 0
    step_ns: int = 0


@dataclass(frozen=True, slots=True)
class Host:
    """The machine around the devices: cores, and pressure as the kernel's PSI gives it (some, 10 s).

    `cores_idle_milli` is what nobody but us uses, in thousandths of one core: 1500 is one and a half cores.
    """

    cores: int = 1
    cores_idle_milli: int = 1000
    cpu_pressure_milli: int = 0
    io_pressure_milli: int = 0
    memory_pressure_milli: int = 0


# Each policy's own state under its name, as flat integers: cheap to compare, to hash and to write down.
Memory = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class View:
    """All that a policy may know, at one instant. Nothing in it changes; jobs, devices and co-runners are sorted.

    `memory` is what the last decision asked to be given back, () at first.
    """

    jobs: tuple[Job, ...] = ()
    devices: tuple[DeviceView, ...] = ()
    co_runners: tuple[CoRunner, ...] = ()
    host: Host = Host()
    memory: Memory = ()


@dataclass(frozen=True, slots=True)
class Grant:
    """Leave to run one job's units on one device, until the next decision.

    Parameters
    ----------
    device, job : which.
    unit_ns : length of a unit, alone on the device.
    depth : how many units may be in flight.
    gap_ns : pause after each unit; 0 for none.
    units_max : after so many units the driver asks again; 0 for no limit.
    threads : how many threads, on a CPU; 1 elsewhere.
    is_probe : the unit only looks whether the device is free.
    """

    device: str
    job: int
    unit_ns: int = UNIT_NS
    depth: int = UNITS_DEEP
    gap_ns: int = 0
    units_max: int = 0
    threads: int = 1
    is_probe: bool = False


@dataclass(frozen=True, slots=True)
class Watch:
    """What is worth asking again for, on one device.

    Parameters
    ----------
    device : which.
    stretch_milli_max : ask when a unit ended with a stretch above this; 0 for never.
    quiet_ns_min : ask when its co-runners that say what they do have come to be all idle for so long; -1 for never.
    is_busy_told : ask as soon as a co-runner turns BUSY.
    is_report_told : ask on every new telemetry window and on every new report of a co-runner's steps.
    """

    device: str
    stretch_milli_max: int = 0
    quiet_ns_min: int = -1
    is_busy_told: bool = False
    is_report_told: bool = False


@dataclass(frozen=True, slots=True)
class Trim:
    """Give device memory back, down to `keep_bytes`; with `is_parked` the context too."""

    device: str
    keep_bytes: int
    is_parked: bool = False


@dataclass(frozen=True, slots=True)
class Lateness:
    """A job's window will be missed by `late_ns` at the rate that can be kept up within the allowed impact."""

    job: int
    late_ns: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What shall hold from now until the next decision. A device without a grant starts no unit.

    The contract of a driver. It calls `Policy.decide` once at the start, and then when, and only when,
    (1) `wake_ns` has come; (2) a job arrived, ended or changed its class, a co-runner that says what it does came or
    went, or a peer's wish, a lease or a device's usability changed; (3) a `Watch` says so; (4) a grant's `units_max`
    units have ended; (5) a unit failed. Several causes at one instant make one call. Units in flight are never taken
    back: a withdrawn grant ends at a unit's border.
    A grant on a device whose lease is not held is a wish: the driver queues for the lease, and asks again with it.
    Without a grant on a device whose lease a peer wants, it gives that lease up at the unit's border.

    Parameters
    ----------
    grants : at most one for each device, sorted by device.
    watches : at most one for each device, sorted by device.
    trims : memory to give back now.
    late : windows that will be missed, said in advance.
    wake_ns : when to ask again at the latest, None for not by time.
    memory : the policies' state, to be given back in the next view.
    """

    grants: tuple[Grant, ...] = ()
    watches: tuple[Watch, ...] = ()
    trims: tuple[Trim, ...] = ()
    late: tuple[Lateness, ...] = ()
    wake_ns: int | None = None
    memory: Memory = ()


class Policy(Protocol):
    """Decides. No clock, no I/O, no randomness: the same time and view give the same decision."""

    def decide(self, now_ns: int, view: View) -> Decision:
        """What shall hold from `now_ns` on."""
        ...


class Clock(Protocol):
    """The one source of time of a driver."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds."""
        ...

    def wait_until(self, at_ns: int) -> None:
        """Return when `at_ns` has come, at once when it is past; or before, when there may be news."""
        ...


@dataclass(frozen=True, slots=True)
class Unit:
    """One launch's worth of work: idempotent, so that it may be dropped and done again."""

    number: int
    job: int
    size_bytes: int
    expected_ns: int
    is_probe: bool = False


@dataclass(frozen=True, slots=True)
class UnitDone:
    """A unit that left the device: when it was submitted, when its end was seen, and whether its result is good."""

    unit: Unit
    submitted_ns: int
    ended_ns: int
    is_ok: bool = True


class Device(Protocol):
    """Runs units, in the order of submission."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> DeviceKind: ...

    @property
    def rate_bytes_per_s(self) -> int:
        """What our pipeline does on it alone."""
        ...

    def submit(self, unit: Unit) -> None:
        """Hand a unit over; never waits for it. Raises DeviceError when the device cannot take it."""
        ...

    def poll(self) -> tuple[UnitDone, ...]:
        """The units that ended since the last call, in order."""
        ...

    def telemetry(self) -> Telemetry | None:
        """The newest counters, None where there are none; cheap, from a cache."""
        ...

    def trim(self, keep_bytes: int) -> int:
        """Give device memory back down to `keep_bytes`; returns what is still held."""
        ...

    def park(self) -> None:
        """Give everything back, the context too; the next submit takes it again."""
        ...


def canonical(value: object) -> bytes:
    """The one JSON form of a value of this module: fields in their order, no spaces, integers only."""
    return msgspec.json.encode(value, order="deterministic")


def view_hash(view: View) -> str:
    """Sixteen hexadecimal digits, XXH3 of the view's canonical JSON, memory included."""
    return xxhash.xxh3_64_hexdigest(canonical(view))
