"""A run as a trace in the Trace Event Format (JSON), which ui.perfetto.dev and chrome://tracing open.

Each device is a process; in it our units and each co-runner have a line of their own. Times are simulated, in us.
Source: "Trace Event Format", Google; events of the kinds X (complete), i (instant), C (counter) and M (metadata).
"""

from __future__ import annotations

from typing import Any

from ..core import Decision, Grant

_OURS = 1
_FIRST_CO_RUNNER = 2
_POLICY = "policy"


class TraceRecorder:
    """Keeps events, at most so many; what comes later is counted and left out.

    Parameters
    ----------
    events_max : a viewer grows slow with more than about a million.
    """

    def __init__(self, events_max: int = 500_000) -> None:
        self._events_max = events_max
        self._events: list[dict[str, Any]] = []
        self._processes: dict[str, int] = {}
        self._threads: dict[tuple[str, str], int] = {}
        self.left_out = 0

    def busy(self, name: str, device: str, start_ns: int, end_ns: int) -> None:
        """A co-runner's phase."""
        self._add(device, name, "X", start_ns, name="busy", dur=(end_ns - start_ns) / 1000)

    def ran(self, device: str, grant: Grant, start_ns: int, end_ns: int) -> None:
        """Our units, one after another."""
        title = "probe" if grant.is_probe else f"job {grant.job}"
        arguments = {"unit_ms": grant.unit_ns / 1e6, "depth": grant.depth, "threads": grant.threads}
        self._add(device, "ohdiff", "X", start_ns, name=title, dur=(end_ns - start_ns) / 1000, args=arguments)

    def decided(self, now_ns: int, decision: Decision) -> None:
        """A decision, and the share of each device that it grants."""
        title = ", ".join(f"{grant.device}: job {grant.job}" for grant in decision.grants) or "nothing"
        self._add(_POLICY, "decisions", "i", now_ns, name=title, s="t")
        shares = {grant.device: grant.unit_ns / (grant.unit_ns + grant.gap_ns) for grant in decision.grants}
        self._add(_POLICY, "decisions", "C", now_ns, name="granted", args=shares or {"none": 0})
        for late in decision.late:
            title = f"job {late.job} will be {late.late_ns / 1e9:.0f} s late"
            self._add(_POLICY, "decisions", "i", now_ns, name=title, s="p")

    def trace(self) -> dict[str, Any]:
        """The whole trace, to be written as JSON."""
        names = [
            {"ph": "M", "pid": number, "tid": 0, "name": "process_name", "args": {"name": name}}
            for name, number in self._processes.items()
        ]
        names.extend(
            {"ph": "M", "pid": self._processes[process], "tid": number, "name": "thread_name", "args": {"name": name}}
            for (process, name), number in self._threads.items()
        )
        return {
            "traceEvents": [*names, *self._events],
            "displayTimeUnit": "ms",
            "otherData": {"simulated": True, "events left out": self.left_out},
        }

    def _add(self, process: str, thread: str, phase: str, at_ns: int, **fields: Any) -> None:
        if len(self._events) >= self._events_max:
            self.left_out += 1
            return
        place = {"ph": phase, "pid": self._process(process), "tid": self._thread(process, thread)}
        self._events.append({**place, "ts": at_ns / 1000, **fields})

    def _process(self, name: str) -> int:
        return self._processes.setdefault(name, len(self._processes) + 1)

    def _thread(self, process: str, name: str) -> int:
        if (process, name) not in self._threads:
            used = sum(1 for other, _ in self._threads if other == process)
            is_ours = name in ("ohdiff", "decisions")
            self._threads[process, name] = _OURS if is_ours else _FIRST_CO_RUNNER + used
        return self._threads[process, name]
