"""The emulated device: how soon we step aside, and whether the simulator says what real processes do.

The server, the co-runner and our loop are processes with real clocks. Simulated is the same scenario with the same
requests at the same times; what the simulator is told of this machine are four micro-benchmarks, and how the device
was told to take turns.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from ohdiff import clock
from ohdiff.scheduling.core import MS, SECOND, US, Job, JobClass, Unit, UnitDone
from ohdiff.scheduling.emulated import QUANTUM_NS, SWITCH_NS, EmulatedDevice, EmulatedServer, RealClock
from ohdiff.scheduling.hint.device_hint import DeviceHint
from ohdiff.scheduling.policies.compose import Arbiter, PolicySettings, build_policy
from ohdiff.scheduling.real_loop import LeasedDevice, RealLoop
from ohdiff.scheduling.shared_page import SharedPage
from ohdiff.scheduling.signals import CoRunnerSignals
from ohdiff.scheduling.simulator.co_runners import poisson_arrivals
from ohdiff.scheduling.simulator.run import simulate
from ohdiff.scheduling.simulator.scenario import load_scenario

from .figures import line_of, quantile, spread, start

DEVICE = "gpu0"
RATE = 1 << 30
PER_SECOND, SERVICE_NS = 60.0, 5 * MS
# By name: settings, their keys in a scenario, and whether the co-runner tells of its requests.
POLICIES: dict[str, tuple[PolicySettings, str, bool]] = {
    "none": (PolicySettings(arbiter=Arbiter.NONE), 'arbiter = "none"', False),
    "none, 8 deep": (PolicySettings(arbiter=Arbiter.NONE, depth=8), 'arbiter = "none"\ndepth = 8', False),
    "XSched-like, 8": (
        PolicySettings(arbiter=Arbiter.XSCHED, depth=8, quiet_ns=0),
        'arbiter = "xsched"\ndepth = 8\nquiet_ms = 0',
        True,
    ),
    "priority": (PolicySettings(arbiter=Arbiter.PRIORITY), 'arbiter = "priority"', True),
    "stretch-probe": (PolicySettings(arbiter=Arbiter.STRETCH), 'arbiter = "stretch"', False),
}


class Endless:
    """Work without end, until it is told to stop; keeps when its units were on the device."""

    def __init__(self) -> None:
        self.uses: list[tuple[int, int]] = []
        self.done_ns = self.unit_ns_max = 0
        self.is_over = False
        self._numbers = 0

    def jobs(self) -> tuple[Job, ...]:
        """One job."""
        return () if self.is_over else (Job(1, JobClass.SCAVENGE, 0, 1 << 40),)

    def next_unit(self, job: int, device: str, size_bytes: int, *, is_probe: bool) -> Unit | None:
        """A unit of that size."""
        if self.is_over:
            return None
        self._numbers += 1
        return Unit(self._numbers, job, size_bytes, max(1, size_bytes * SECOND // RATE), is_probe)

    def take(self, device: str, done: UnitDone) -> None:
        """Note it."""
        self.uses.append((done.submitted_ns, done.ended_ns))
        self.done_ns += done.unit.expected_ns
        self.unit_ns_max = max(self.unit_ns_max, done.unit.expected_ns)


@contextmanager
def served() -> Iterator[Path]:
    """A running device, and the folder of its socket."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        process = start("device", "serve", folder)
        try:
            line_of(process)
            yield Path(folder)
        finally:
            process.kill()
            process.wait()


def run_ours(folder: Path, settings: PolicySettings, run_beside: Callable[[], None]) -> Endless:
    """Our loop while something else runs in this thread."""
    page = SharedPage.in_folder(folder / "runtime", DEVICE)
    device = EmulatedDevice(folder / "socket", DEVICE, RATE)
    signals = CoRunnerSignals(DEVICE, [page])
    work = Endless()
    loop = RealLoop(build_policy(settings), [LeasedDevice(device)], work, RealClock(), co_runners=signals.read)
    thread = threading.Thread(target=loop.run)
    thread.start()
    run_beside()
    work.is_over = True
    thread.join()
    device.park()
    page.close()
    return work


def yields(count: int) -> dict[str, Any]:
    """From a co-runner's word to the end of our last unit; it does not use the device."""
    with served() as folder:
        hint = DeviceHint(DEVICE, folder=str(folder / "runtime"))
        busy: list[tuple[int, int]] = []

        def be_busy() -> None:
            threading.Event().wait(0.2)
            for number in range(count):
                with hint.busy():
                    began_ns = clock.monotonic_ns()
                    threading.Event().wait(0.006 + 0.0007 * (number % 5))
                    busy.append((began_ns, clock.monotonic_ns()))
                threading.Event().wait(0.008 + 0.0011 * (number % 7))

        settings = PolicySettings(arbiter=Arbiter.PRIORITY)
        work = run_ours(folder, settings, be_busy)
        hint.close()
    waits = [
        max([ended - began for submitted, ended in work.uses if submitted < until and ended > began], default=0) / MS
        for began, until in busy
    ]
    return {
        "count": count,
        "unit_ms": round(work.unit_ns_max / MS, 2),
        "p50_ms": round(quantile(waits, 0.5), 2),
        "p99_ms": round(quantile(waits, 0.99), 2),
        "max_ms": round(max(waits), 2),
    }


def against_simulator(seconds: float, rounds: int) -> dict[str, Any]:
    """The same scenarios on real processes and in the simulator, and how far they are apart."""
    with served() as folder:
        calibration = calibrated(folder)
        rows: dict[str, dict[str, list[float]]] = {}
        for seed in range(1, rounds + 1):
            for name, (settings, words, is_telling) in POLICIES.items():
                real = measured(folder, settings, seconds, seed, is_telling=is_telling)
                model = simulated(folder, words, calibration, seconds, seed, is_telling=is_telling)
                row = rows.setdefault(name, {})
                for figure in real:
                    row.setdefault(f"real {figure}", []).append(real[figure])
                    row.setdefault(f"simulated {figure}", []).append(model[figure])
                    row.setdefault(f"error {figure}", []).append(model[figure] / real[figure] - 1)
            print(f"device round {seed} of {rounds}", file=sys.stderr)
    figures = ("share", "p50_ms", "p99_ms")
    middle = {name: {key: spread(values) for key, values in row.items()} for name, row in rows.items()}
    taus = {
        figure: kendall([(row[f"real {figure}"], row[f"simulated {figure}"]["median"]) for row in middle.values()])
        for figure in figures
    }
    return {"calibration": calibration, "policies": middle, "tau": taus}


def calibrated(folder: Path) -> dict[str, float]:
    """What a request takes besides its service, how late a sleeping server begins, and what passes between our units.

    Each is of one side alone; units also beside a co-runner that tells of itself and does nothing, as looking at it
    takes time.
    """
    at_once_ns, after_pauses_ns = _request_ns(folder, is_at_once=True), _request_ns(folder, is_at_once=False)
    launch_us = _launch_us(folder)
    hint = DeviceHint(DEVICE, folder=str(folder / "runtime"))
    with hint.busy():
        pass
    launch_told_us = _launch_us(folder)
    hint.close()
    return {
        "request_us": round((at_once_ns - SERVICE_NS) / 1e3, 1),
        "wake_us": round(max(0.0, after_pauses_ns - at_once_ns) / 1e3, 1),
        "launch_us": launch_us,
        "launch_told_us": launch_told_us,
    }


def _launch_us(folder: Path) -> float:
    """The usual time between two of our units alone."""
    uses = run_ours(folder, PolicySettings(arbiter=Arbiter.NONE), lambda: _wait(1.5)).uses
    return round(statistics.median(later[0] - earlier[1] for earlier, later in pairwise(uses)) / 1e3, 1)


def _request_ns(folder: Path, *, is_at_once: bool) -> float:
    """The usual time of a request when the next one comes at once, or after a pause."""
    process = start("device", "requests", str(folder), "200", "at once" if is_at_once else "", stdin=-1)
    line_of(process)
    return statistics.median(float(word) for word in talk(process).split())


def measured(
    folder: Path, settings: PolicySettings, seconds: float, seed: int, *, is_telling: bool
) -> dict[str, float]:
    """Our share of the device, and the co-runner's latencies."""
    told = "told" if is_telling else ""
    process = start("device", "queue", str(folder), str(seconds), str(seed), told, stdin=-1)
    line_of(process)
    said: list[str] = []
    work = run_ours(folder, settings, lambda: said.append(talk(process)))
    latencies = [float(word) / MS for word in said[0].split()]
    elapsed_ns = work.uses[-1][1] - work.uses[0][0]
    return {
        "share": work.done_ns / elapsed_ns,
        "p50_ms": quantile(latencies, 0.5),
        "p99_ms": quantile(latencies, 0.99),
    }


def simulated(
    folder: Path, words: str, calibration: dict[str, float], seconds: float, seed: int, *, is_telling: bool
) -> dict[str, float]:
    """The same figures, of the model."""
    launch_us = calibration["launch_told_us" if is_telling else "launch_us"]
    path = folder / "scenario.toml"
    path.write_text(
        f"""
[scenario]
name = "emulated"
duration_s = {seconds}
seed = {seed}
[machine]
cores = 2
[[accelerator]]
name = "{DEVICE}"
kernel_gb_per_s = {RATE / 1e9}
launch_us = {max(0.0, launch_us)}
slice_ms = {QUANTUM_NS / MS}
switch_us = {SWITCH_NS / US}
resident = true
[[co_runner]]
name = "queue"
kind = "queue"
device = "{DEVICE}"
per_s = {PER_SECOND}
service_ms = {SERVICE_NS / MS}
wake_us = {calibration["wake_us"]}
answer_us = {max(0.0, calibration["request_us"])}
tells = {str(is_telling).lower()}
[[job]]
class = "scavenge"
endless = true
[policy]
{words}
"""
    )
    result = simulate(load_scenario(path))
    latency = result.co_runners[0].figures["latency"]
    return {
        "share": result.devices[0].harvested_ns / result.simulated_ns,
        "p50_ms": latency.p50 / MS,
        "p99_ms": latency.p99 / MS,
    }


def kendall(pairs: list[tuple[dict[str, float], float]]) -> float:
    """The rank correlation of real spreads and simulated values.

    Policies whose real rounds overlap have no order that could be kept; where only the simulator sees no difference,
    that is half a fault.
    """
    agreed = counted = 0
    for place, (real, model) in enumerate(pairs):
        for other_real, other_model in pairs[place + 1 :]:
            if real["least"] <= other_real["most"] and other_real["least"] <= real["most"]:
                continue
            counted += 1
            agreed += _sign(real["median"] - other_real["median"]) * _sign(model - other_model)
    return round(agreed / counted, 3) if counted else 1.0


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def talk(process: Any) -> str:
    """Let a process begin, and hear all that it says."""
    said: str = process.communicate("go\n")[0]
    return said.strip()


def main() -> None:
    """Be the device, or its co-runner."""
    folder = Path(sys.argv[2])
    if sys.argv[1] == "serve":
        server = EmulatedServer(folder / "socket")
        print("ready", flush=True)
        server.run()
    elif sys.argv[1] == "requests":
        arrivals = iter([(2 * number * SERVICE_NS, float(SERVICE_NS)) for number in range(1, 1 + int(sys.argv[3]))])
        serve_queue(folder, arrivals, None, is_at_once=bool(sys.argv[4]))
    else:
        seconds, seed = float(sys.argv[3]), int(sys.argv[4])
        hint = DeviceHint(DEVICE, folder=str(folder / "runtime")) if sys.argv[5] else None
        # As the simulator makes its first co-runner's.
        arrivals = poisson_arrivals(PER_SECOND, SERVICE_NS, int(seconds * SECOND), seed * 100, is_service_random=False)
        serve_queue(folder, arrivals, hint)


def serve_queue(
    folder: Path, arrivals: Iterator[tuple[int, float]], hint: DeviceHint | None, *, is_at_once: bool = False
) -> None:
    """Serve requests on the device, first come first served; prints each one's time since its arrival."""
    device = EmulatedDevice(folder / "socket", DEVICE, RATE)
    print("ready", flush=True)
    sys.stdin.readline()
    latencies = []
    began_ns = clock.monotonic_ns()
    with ExitStack() as busy:
        is_busy = False
        for number, (at_ns, service_ns) in enumerate(arrivals, 1):
            due_ns = clock.monotonic_ns() if is_at_once else began_ns + at_ns
            # A server is busy for as long as requests wait.
            if due_ns > clock.monotonic_ns():
                busy.close()
                is_busy = False
                _wait((due_ns - clock.monotonic_ns()) / SECOND)
            if hint is not None and not is_busy:
                busy.enter_context(hint.busy())
                is_busy = True
            device.submit(Unit(number, 1, 1, int(service_ns)))
            while not device.poll():
                _wait(0.0001)
            latencies.append(clock.monotonic_ns() - due_ns)
    print(*latencies, flush=True)


def _wait(seconds: float) -> None:
    if seconds > 0:
        threading.Event().wait(seconds)


if __name__ == "__main__":
    main()
