"""AIMD: a share of time that grows slowly and shrinks fast, by the step time that a co-runner reports.

The control of TGS (NSDI'23). Changed: what is controlled is our own share of time, not a count of thread blocks; the
co-runner reports its own steps instead of having its launches intercepted; reports come every tenth of a second instead
of every 5 s; and its undisturbed step time is learned with our share at zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core import MS, SECOND, CoRunner, View
from .draft import Draft, accelerators


@dataclass(frozen=True, slots=True)
class RateLimits:
    """The constants of the control; losses are shares of the co-runner's rate.

    TGS: 3 % tolerated, a factor of 1.5 in slow start, 9 % for a fall to a tenth, 12 % for 20 rounds to learn anew.

    Parameters
    ----------
    loss_milli_max : the loss that is aimed at; below it the share grows by `grow_milli` each `period_ns`.
    shrink_milli_at : a loss above it multiplies the share by two thirds.
    fall_milli_at : a loss above it divides the share by ten.
    relearn_milli_at, relearn_rounds : a loss above it for so many rounds is a new phase of the co-runner.
    learn_rounds : reports, with our share at zero, whose mean is the undisturbed step time.
    """

    loss_milli_max: int = 10
    shrink_milli_at: int = 30
    fall_milli_at: int = 90
    relearn_milli_at: int = 120
    relearn_rounds: int = 20
    learn_rounds: int = 5
    grow_milli: int = 20
    period_ns: int = 100 * MS


TGS_LIMITS = RateLimits(loss_milli_max=30, shrink_milli_at=30, grow_milli=40, period_ns=5 * SECOND)


@dataclass(frozen=True, slots=True)
class _State:
    share_milli: int = 0
    alone_ns: int = 0  # the undisturbed step time, a sum of reports while it is being learned
    learned: int = -1  # the first report is of steps that we may have disturbed, and is not learned from
    bad_rounds: int = 0
    seen_steps: int = 0
    changed_ns: int = -SECOND


class ReportedRate:
    """Limits the share of each accelerator whose co-runner reports steps; the slowest of several counts."""

    def __init__(self, limits: RateLimits) -> None:
        self._limits = limits

    def apply(self, now_ns: int, view: View, draft: Draft) -> None:
        """Set the share of time by what was reported since the last call."""
        for device in accelerators(view):
            for co_runner in view.co_runners:
                if co_runner.device == device.device:
                    draft.watch(device.device, is_report_told=True)
                    self._control(now_ns, co_runner, draft)

    def _control(self, now_ns: int, co_runner: CoRunner, draft: Draft) -> None:
        key = f"rate:{co_runner.device}:{co_runner.name}"
        state = _State(*draft.remembered(key))
        is_news = co_runner.steps > state.seen_steps and co_runner.step_ns > 0
        if is_news and now_ns - state.changed_ns >= self._limits.period_ns:
            state = self._next(now_ns, co_runner, state)
        draft.remember(
            key,
            (state.share_milli, state.alone_ns, state.learned, state.bad_rounds, state.seen_steps, state.changed_ns),
        )
        if co_runner.steps:  # without any report nothing is known to be disturbed
            draft.limit_duty(co_runner.device, state.share_milli)

    def _next(self, now_ns: int, co_runner: CoRunner, state: _State) -> _State:
        limits = self._limits
        if state.learned < limits.learn_rounds:
            return self._learning(now_ns, co_runner, state)
        loss_milli = max(0, 1000 - state.alone_ns * 1000 // co_runner.step_ns)
        bad_rounds = state.bad_rounds + 1 if loss_milli > limits.relearn_milli_at else 0
        if bad_rounds >= limits.relearn_rounds:
            return _State(seen_steps=co_runner.steps, changed_ns=now_ns)
        share_milli = self._share(state.share_milli, loss_milli)
        # A step that is faster than ever pulls the undisturbed time down, slowly, as steps vary by themselves.
        faster_ns = max(0, state.alone_ns - co_runner.step_ns) // 16
        return _State(share_milli, state.alone_ns - faster_ns, state.learned, bad_rounds, co_runner.steps, now_ns)

    def _learning(self, now_ns: int, co_runner: CoRunner, state: _State) -> _State:
        learned = state.learned + 1
        total_ns = state.alone_ns + co_runner.step_ns if learned else 0
        is_done = learned == self._limits.learn_rounds
        share_milli = self._limits.grow_milli if is_done else 0
        return _State(share_milli, total_ns // learned if is_done else total_ns, learned, 0, co_runner.steps, now_ns)

    def _share(self, share_milli: int, loss_milli: int) -> int:
        limits = self._limits
        if loss_milli > limits.fall_milli_at:
            return max(1, share_milli // 10)
        if loss_milli > limits.shrink_milli_at:
            return max(1, share_milli * 2 // 3)
        if loss_milli <= limits.loss_milli_max:
            return min(1000, share_milli + limits.grow_milli)
        return share_milli
