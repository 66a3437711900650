"""The event loop: time jumps to the next thing that happens, and the policy is asked when its contract says so.

Flows are few (co-runners' phases and our streams), so that the next event is found by looking at each. While a server
is alone on its device and nothing of ours runs, it goes through its iterations by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, inf

from ..core import Decision, DeviceKind, DeviceView, Grant, Policy, View, Watch
from .batching import BatchingServer
from .co_runners import NEVER_NS, CoRunnerModel
from .gauges import DeviceGauge, HostGauge
from .presence import Presence
from .recorder import Recorder
from .scenario import CPU
from .sharing import Sharing, is_anybody_on
from .sim_job import SimJob
from .stream import Stream
from .world import Machine

_BYTES_TOLERANCE = 1e-3


class Engine:
    """One run.

    Parameters
    ----------
    machine : resources and demands.
    co_runners, jobs : who is there; jobs by arrival.
    policy : who decides.
    log : called with each decision and what it was made from; None for no log.
    recorder : sees everything; None for nobody.
    """

    def __init__(
        self,
        machine: Machine,
        co_runners: Sequence[CoRunnerModel],
        jobs: Sequence[SimJob],
        policy: Policy,
        *,
        log: Callable[[int, View, Decision], None] | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.now_ns = 0
        self.decisions = 0
        self.events = 0
        self.yields_ns: list[int] = []  # for each time that a co-runner met our units on an accelerator: how long
        self.presences = [Presence(model) for model in sorted(co_runners, key=lambda model: model.name)]
        self.streams = {device: Stream(device) for device, _ in machine.devices}
        self._streams = tuple(self.streams.values())
        self._sharing = Sharing(machine, self.presences, self._streams)
        self._machine = machine
        self._device_rates = {device: int(machine.device_rate(device)) for device, _ in machine.devices}
        self._has_cpu_device = machine.plan.has_cpu_device
        self._policy = policy
        self._log = log
        self._recorder = recorder
        self._coming = list(jobs)[::-1]
        self._jobs: list[SimJob] = []
        self._host = HostGauge(machine.plan.cores)
        self._gauges = {
            plan.name: DeviceGauge(plan.telemetry_ns, is_per_process=plan.is_per_process)
            for plan in machine.plan.accelerators
            if plan.telemetry_ns
        }
        self._reports_ns = {
            presence.model.name: presence.model.report_ns for presence in self.presences if presence.model.report_ns
        }
        self._watches: dict[str, Watch] = {}
        self._quiet_ns: dict[str, int] = {}
        self._wake_ns = NEVER_NS
        self._memory = View().memory
        self._is_asked = True  # whether the policy is to be asked before time goes on

    def run(self, end_ns: int) -> None:
        """Until `end_ns`, or until nobody has anything left to do."""
        self._arrive()
        while True:
            if self._is_asked:
                self._decide()
            self._sharing.set_rates(self.now_ns)
            if self.now_ns >= end_ns or self._is_over():
                break
            if self._is_server_alone() and self._skip(end_ns):
                continue
            next_ns = min(self._next_ns(), end_ns)
            self._advance(next_ns)
            self._handle()
            self.events += 1
        for stream in self.streams.values():
            self._note_run(stream)

    def _is_over(self) -> bool:
        # Asked at each event: plain loops take a third of the time of any() and all() over generators.
        if self._coming:
            return False
        for presence in self.presences:
            if presence.is_busy:
                return False
        for job in self._jobs:
            if not job.is_endless:
                return False
        if not self.presences:
            return not self._jobs
        return all(presence.model.is_exhausted for presence in self.presences)

    # Rates, and the way to the next event

    def _next_ns(self) -> int:
        now_ns = self.now_ns
        soonest = self._wake_ns
        for presence in self.presences:
            at_ns = presence.end_ns(now_ns) if presence.is_busy else presence.model.next_ns
            if at_ns < soonest:
                soonest = at_ns
        for stream in self._streams:
            at_ns = NEVER_NS
            if stream.is_flowing:
                left = stream.left
                if left < inf and stream.rate > 0:
                    at_ns = now_ns + ceil(left / stream.rate)
            elif stream.gap_until_ns:
                at_ns = stream.gap_until_ns
            if at_ns < soonest:
                soonest = at_ns
        return max(min(soonest, self._jobs_next_ns(), self._timers_next_ns()), now_ns)

    def _timers_next_ns(self) -> int:
        soonest = self._coming[-1].plan.arrives_ns if self._coming else NEVER_NS
        for times in (self._reports_ns, self._quiet_ns):
            if times:
                soonest = min(soonest, *times.values())
        for gauge in self._gauges.values():
            soonest = min(soonest, gauge.next_ns)
        return min(soonest, self._sharing.next_ns)

    def _jobs_next_ns(self) -> int:
        """When the first job, or its part in large or small files, has been worked through."""
        soonest = NEVER_NS
        for job in self._jobs:
            if job.is_endless:
                continue
            cpu, rest = 0.0, 0.0
            for stream in self._streams:
                if stream.is_flowing and stream.job is job:
                    speed = stream.speed
                    cpu, rest = (cpu + speed, rest) if stream.device == CPU else (cpu, rest + speed)
            soonest = min(soonest, self.now_ns + job.left_ns(cpu, rest))
        return soonest

    def _advance(self, until_ns: int) -> None:
        elapsed_ns = until_ns - self.now_ns
        self.now_ns = until_ns
        if elapsed_ns == 0:
            return
        for presence in self.presences:
            if presence.is_busy:
                presence.left -= presence.rate * elapsed_ns
                presence.busy_ns += elapsed_ns if presence.model.is_on_device else 0
        for stream in self._streams:
            if stream.is_flowing:
                stream.advance(until_ns, elapsed_ns)
        for device, gauge in self._gauges.items():
            is_others = any(
                each.is_busy and each.model.is_on_device and each.model.device == device for each in self.presences
            )
            gauge.pass_time(elapsed_ns, is_others=is_others, is_ours=self.streams[device].is_flowing)
        if self._has_cpu_device:
            self._host.pass_time(elapsed_ns, self._sharing.others_cores, is_short=self._sharing.is_short)

    # What happened

    def _handle(self) -> None:
        for presence in self.presences:
            is_chained = presence.is_busy and presence.left <= 0.5 and self._end_phase(presence)
            if not presence.is_busy and presence.model.next_ns <= self.now_ns:
                self._begin_phase(presence, is_chained=is_chained)
        for stream in self._streams:
            if stream.is_flowing or stream.gap_until_ns:
                self._handle_stream(stream)
        self._end_jobs()
        self._arrive()
        self._ring()

    def _end_phase(self, presence: Presence) -> bool:
        """End a phase; returns whether the next follows at once, without a pause that could be told."""
        model = presence.model
        model.end(self.now_ns)
        if self._recorder is not None:
            self._recorder.busy(model.name, model.device, presence.started_ns, self.now_ns)
        presence.is_busy = False
        if model.next_ns <= self.now_ns:
            return True
        presence.since_ns = self.now_ns
        self._set_quiet(model.device, is_news=True)
        self._end_contest(model.device)
        return False

    def _begin_phase(self, presence: Presence, *, is_chained: bool) -> None:
        model = presence.model
        presence.left = model.begin(self.now_ns)
        presence.is_busy = True
        presence.started_ns = self.now_ns
        if is_chained:
            return
        presence.since_ns = self.now_ns
        self._quiet_ns.pop(model.device, None)
        stream = self.streams.get(model.device)
        if stream is not None and stream.is_flowing and stream.contested_ns < 0:
            self._contest(stream)
        watch = self._watches.get(model.device)
        if watch is not None and watch.is_busy_told and model.is_telling:
            self._is_asked = True

    def _set_quiet(self, device: str, *, is_news: bool) -> None:
        """Start to wait for the pause that the policy asked for, if all that tell are idle; `is_news` if only now."""
        watch = self._watches.get(device)
        if watch is None or watch.quiet_ns_min < 0:
            return
        telling = [each for each in self.presences if each.model.device == device and each.model.is_telling]
        if not telling or any(each.is_busy for each in telling):
            return
        at_ns = max(each.since_ns for each in telling) + watch.quiet_ns_min
        if at_ns > self.now_ns:
            self._quiet_ns[device] = at_ns
        elif is_news:
            self._is_asked = True

    def _handle_stream(self, stream: Stream) -> None:
        if stream.gap_until_ns and stream.gap_until_ns <= self.now_ns:
            stream.resume(self.now_ns)
            return
        if not stream.is_flowing or stream.grant is None:
            return
        if stream.is_ending:
            if stream.left <= 0.5:
                self._finish(stream)
        elif stream.is_at_border:
            self._handle_border(stream, stream.grant)

    def _handle_border(self, stream: Stream, grant: Grant) -> None:
        if stream.report is None or stream.report.ended_ns != self.now_ns:
            return
        if stream.is_spent:
            self._stop(stream)
            self._is_asked = True
        elif stream.is_stretched:
            self._is_asked = True
        elif grant.gap_ns:
            self._note_run(stream)
            self._end_contest(stream.device)
            stream.pause(self.now_ns + grant.gap_ns)

    def _finish(self, stream: Stream) -> None:
        """The last unit of a withdrawn grant has ended."""
        waiting = stream.waiting
        self._stop(stream)
        if waiting is not None and waiting[1].ended_ns is None:
            self._begin(stream, *waiting)

    def _stop(self, stream: Stream) -> None:
        self._note_run(stream)
        stream.clear()
        self._end_contest(stream.device)

    def _note_run(self, stream: Stream) -> None:
        if self._recorder is not None and stream.grant is not None and stream.is_flowing:
            self._recorder.ran(stream.device, stream.grant, stream.started_ns, self.now_ns)
            stream.started_ns = self.now_ns

    def _end_contest(self, device: str) -> None:
        stream = self.streams.get(device)
        if stream is not None and stream.contested_ns >= 0:
            self.yields_ns.append(self.now_ns - stream.contested_ns)
            stream.contested_ns = -1

    def _end_jobs(self) -> None:
        for job in [job for job in self._jobs if not job.is_endless]:
            if job.left <= _BYTES_TOLERANCE:
                job.ended_ns = self.now_ns
                self._jobs.remove(job)
                self._stop_streams_of(job, only_accelerators=False)
            elif job.left - job.small_left <= _BYTES_TOLERANCE and not job.is_only_small:
                job.is_only_small = True
                self._stop_streams_of(job, only_accelerators=True)

    def _stop_streams_of(self, job: SimJob, *, only_accelerators: bool) -> None:
        for stream in self.streams.values():
            if stream.job is job and not (only_accelerators and stream.device == CPU):
                self._stop(stream)
        self._is_asked = True

    def _arrive(self) -> None:
        while self._coming and self._coming[-1].plan.arrives_ns <= self.now_ns:
            self._jobs.append(self._coming.pop())
            self._is_asked = True

    def _ring(self) -> None:
        """Timers that have come."""
        if self._wake_ns <= self.now_ns:
            self._is_asked = True
        if self._quiet_ns:
            for device in [device for device, at_ns in self._quiet_ns.items() if at_ns <= self.now_ns]:
                del self._quiet_ns[device]
                self._is_asked = True
        for device, gauge in self._gauges.items():
            if gauge.next_ns <= self.now_ns:
                gauge.close()
                self._tell_report(device)
        for presence in self.presences if self._reports_ns else ():
            name = presence.model.name
            if self._reports_ns.get(name, NEVER_NS) <= self.now_ns:
                self._reports_ns[name] += presence.model.report_ns
                if presence.report():
                    self._tell_report(presence.model.device)

    def _tell_report(self, device: str) -> None:
        watch = self._watches.get(device)
        if watch is not None and watch.is_report_told:
            self._is_asked = True

    # The policy

    def _decide(self) -> None:
        self._is_asked = False
        view = self._view()
        decision = self._policy.decide(self.now_ns, view)
        self.decisions += 1
        if self._log is not None:
            self._log(self.now_ns, view, decision)
        if self._recorder is not None:
            self._recorder.decided(self.now_ns, decision)
        self._memory = decision.memory
        self._apply(decision)

    def _view(self) -> View:
        jobs = tuple([job.view for job in self._jobs])  # they came, and are numbered, by arrival
        devices = tuple([self._device_view(device, kind) for device, kind in self._machine.devices])
        co_runners = tuple([presence.view for presence in self.presences if presence.is_visible])
        return View(jobs, devices, co_runners, self._host.read(self.now_ns), self._memory)

    def _device_view(self, device: str, kind: DeviceKind) -> DeviceView:
        stream = self.streams[device]
        gauge = self._gauges.get(device)
        return DeviceView(
            device,
            kind,
            self._device_rates[device],
            in_flight=stream.in_flight,
            last_unit=stream.report,
            telemetry=None if gauge is None else gauge.newest,
            served_ns=int(stream.served),
            threads_max=self._machine.plan.cores if kind is DeviceKind.CPU else 1,
        )

    def _apply(self, decision: Decision) -> None:
        self._wake_ns = NEVER_NS if decision.wake_ns is None else max(decision.wake_ns, self.now_ns + 1)
        self._watches = {watch.device: watch for watch in decision.watches}
        self._quiet_ns.clear()
        grants = {grant.device: grant for grant in decision.grants}
        for device, stream in self.streams.items():
            watch = self._watches.get(device)
            stream.watch(0 if watch is None else watch.stretch_milli_max)
            self._grant(stream, grants.get(device))
            self._set_quiet(device, is_news=False)
        for late in decision.late:
            job = next(job for job in self._jobs if job.number == late.job)
            if job.warned_ns is None:
                job.warned_ns, job.warned_late_ns = self.now_ns, late.late_ns

    def _grant(self, stream: Stream, grant: Grant | None) -> None:
        job = None if grant is None else self._job(grant.job)
        if grant is None or job is None:
            self._withdraw(stream)
            stream.waiting = None
        elif stream.grant is not None and _is_same(stream.grant, grant):
            stream.renew(grant)
        else:
            self._withdraw(stream)
            if stream.is_flowing:
                stream.waiting = (grant, job)
            else:
                self._begin(stream, grant, job)

    def _job(self, number: int) -> SimJob | None:
        for job in self._jobs:
            if job.number == number:
                return job
        return None

    def _withdraw(self, stream: Stream) -> None:
        started_ns, grant, was_flowing = stream.started_ns, stream.grant, stream.is_flowing
        if not stream.withdraw():
            if self._recorder is not None and was_flowing and grant is not None:
                self._recorder.ran(stream.device, grant, started_ns, self.now_ns)
            self._end_contest(stream.device)

    def _begin(self, stream: Stream, grant: Grant, job: SimJob) -> None:
        stream.begin(self.now_ns, grant, job, self._machine.unit_of(grant))
        if is_anybody_on(stream.device, self.presences):
            self._contest(stream)

    def _contest(self, stream: Stream) -> None:
        """Note since when we are in the way; on a CPU others run beside us, and nobody has to yield."""
        if stream.device != CPU:
            stream.contested_ns = self.now_ns

    # The short way

    def _is_server_alone(self) -> bool:
        if len(self.presences) != 1 or self._recorder is not None:
            return False
        presence = self.presences[0]
        if not presence.is_busy or not isinstance(presence.model, BatchingServer):
            return False
        return not any(stream.is_flowing or stream.gap_until_ns for stream in self.streams.values())

    def _skip(self, end_ns: int) -> bool:
        """Let the server run by itself until something else happens; returns whether time went on."""
        presence = self.presences[0]
        model = presence.model
        if not isinstance(model, BatchingServer):
            return False
        until_ns = min(end_ns, self._wake_ns, self._timers_next_ns())
        watch = self._watches.get(model.device)
        # A pause that ends before the policy wants to know of it is none; without a watch no pause is of interest.
        quiet_ns = NEVER_NS
        if watch is not None:
            quiet_ns = 0 if watch.is_busy_told else (watch.quiet_ns_min if watch.quiet_ns_min >= 0 else NEVER_NS)
        before_ns = self.now_ns
        now_ns, left, busy_ns = model.run_alone(before_ns, presence.left, until_ns, quiet_ns)
        if now_ns == before_ns:
            return False
        presence.busy_ns += busy_ns
        if model.device in self._gauges:
            self._gauges[model.device].add_others(busy_ns)
        if self._has_cpu_device:
            self._host.pass_time(now_ns - before_ns, 0.0, is_short=False)
        self.now_ns = now_ns
        presence.left = left
        presence.since_ns = presence.started_ns = model.started_ns
        if left == 0.0:
            presence.is_busy = False
            presence.since_ns = now_ns
            self._set_quiet(model.device, is_news=True)
        return True


def _is_same(old: Grant, new: Grant) -> bool:
    """Whether units go on as they are; a pause or a limit may differ."""
    return (old.job, old.unit_ns, old.depth, old.threads, old.is_probe) == (
        new.job,
        new.unit_ns,
        new.depth,
        new.threads,
        new.is_probe,
    )
