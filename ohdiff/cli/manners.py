"""How much a command may be noticed: --priority, --max-impact, --deadline and --device-share, and what they set up."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from ohdiff import clock
from ohdiff.errors import UsageError
from ohdiff.scheduling.core import SECOND, JobClass
from ohdiff.scheduling.governor import CPU, Governor, GovernorOptions
from ohdiff.scheduling.hint.device_hint import runtime_folder
from ohdiff.scheduling.manners import Lowered
from ohdiff.scheduling.pace import Pace
from ohdiff.scheduling.policies.compose import Arbiter, PolicySettings, build_policy
from ohdiff.scheduling.presence import Presence
from ohdiff.scheduling.window import Work

from .text import parse_time

_CLASSES: Final = {each.name.lower(): each for each in reversed(JobClass)}
_DURATION: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?:in)?)?(?:(\d+)s)?")


@dataclass(frozen=True, slots=True)
class Manners:
    """The options as given."""

    priority: str
    max_impact: float
    deadline: str | None
    device_share: float

    @property
    def job_class(self) -> JobClass:
        """How much the command matters."""
        return _CLASSES[self.priority]


def manners_options(function: Any) -> Any:
    """Add the options; the command gets them as the fields of `Manners`."""
    percent = click.FloatRange(0, 100)
    for option in (
        click.option(
            "--device-share",
            type=click.FloatRange(1, 100),
            default=100.0,
            metavar="PCT",
            help="Work at most this share of the time.",
        ),
        click.option(
            "--deadline",
            metavar="TIME",
            help="Be done by then (an ISO 8601 time), or after so long (6h30m).",
        ),
        click.option(
            "--max-impact",
            type=percent,
            default=10.0,
            show_default=True,
            metavar="PCT",
            help="What to take from others, at most, when a deadline is near.",
        ),
        click.option(
            "--priority",
            type=click.Choice(list(_CLASSES)),
            default="normal",
            show_default=True,
            help="scavenge uses what nobody else needs; interactive goes before other runs of ohdiff.",
        ),
    ):
        function = option(function)
    return function


@contextmanager
def governed(manners: Manners, threads: int, note: Callable[[str], None], work: Callable[[], Work]) -> Iterator[Pace]:
    """The pace of a command that works with so many threads; they must be started within."""
    job_class = manners.job_class
    settings = PolicySettings(
        # Only who scavenges follows signals; others give way to better runs of ohdiff, and to them at once.
        arbiter=Arbiter.AUTO if job_class is JobClass.SCAVENGE else Arbiter.XSCHED,
        impact_milli_max=round(manners.max_impact * 10),
        share_milli=max(1, round(manners.device_share * 10)),
    )
    state = Lowered(job_class, has_deadline=manners.deadline is not None)
    options = GovernorOptions(
        job_class,
        frozenset(os.sched_getaffinity(0)),
        threads,
        Path(runtime_folder()),
        settings.share_milli,
        None if manners.deadline is None else parse_deadline(manners.deadline),
        work,
        state.press,
    )
    governor = Governor(build_policy(settings), options, note=note)
    # With a deadline the governor's own thread comes first, and stays as it is: it has to see in time that it is near.
    with ExitStack() as stack:
        for each in (governor, state) if manners.deadline is not None else (state, governor):
            stack.enter_context(each)
        yield governor


@contextmanager
def announced(job_class: JobClass) -> Iterator[None]:
    """Say to other runs of ohdiff that this one is at work and goes first."""
    with Presence(CPU, job_class, Path(runtime_folder())):
        yield


def parse_deadline(text: str) -> int:
    """A deadline by the monotonic clock, out of `6h`, `1h30m`, `45min`, or a time."""
    match = _DURATION.fullmatch(text)
    if match is not None and any(match.groups()):
        hours, minutes, seconds = (int(group or 0) for group in match.groups())
        left_ns = ((hours * 60 + minutes) * 60 + seconds) * SECOND
    else:
        left_ns = parse_time(text) - clock.now_ns()
    if left_ns <= 0:
        raise UsageError(f"the deadline {text!r} is past", hint="write a time to come, or a duration such as 6h")
    return clock.monotonic_ns() + left_ns
