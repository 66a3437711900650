"""How much a command may be noticed: --priority, --max-impact, --deadline and --device-share, and what they set up."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from ohdiff import clock
from ohdiff.chunking.engine import Engine
from ohdiff.errors import UsageError
from ohdiff.operations.device_pacing import DeviceManners, paced_device
from ohdiff.scheduling.core import SECOND, JobClass
from ohdiff.scheduling.decision_log import DecisionLog
from ohdiff.scheduling.governor import CPU, Governor, GovernorOptions
from ohdiff.scheduling.hint.device_hint import runtime_folder
from ohdiff.scheduling.manners import Lowered
from ohdiff.scheduling.pace import Pace
from ohdiff.scheduling.policies.compose import Arbiter, PolicySettings, build_policy
from ohdiff.scheduling.presence import Presence
from ohdiff.scheduling.window import Work

from . import environment
from .device_sharing import use_mps
from .engines import stored_profile
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


def share_device(manners: Manners) -> str | None:
    """To be called before a device is used: makes us second where clients share it; what was done, in words.

    A second call says the same.
    """
    return use_mps(manners.job_class)


@contextmanager
def lowered(manners: Manners) -> Iterator[None]:
    """Have everything that a scavenging command does matter less than others' work, its start included.

    One with a deadline is lowered by `governed`, and only by so much that it gets on.
    """
    with nullcontext() if manners.deadline is not None else Lowered(manners.job_class):
        yield


@contextmanager
def governed(
    manners: Manners, threads: int, note: Callable[[str], None], work: Callable[[], Work], engine: Engine
) -> Iterator[Pace]:
    """The pace of a command that works with so many threads; they must be started within, and it within `lowered`.

    The engine's device has a pace of its own, which the engine asks.
    """
    job_class = manners.job_class
    settings = PolicySettings(
        # Only who scavenges follows signals; others give way to better runs of ohdiff, and to them at once.
        arbiter=Arbiter.AUTO if job_class is JobClass.SCAVENGE else Arbiter.XSCHED,
        impact_milli_max=round(manners.max_impact * 10),
        share_milli=max(1, round(manners.device_share * 10)),
    )
    state = Lowered(job_class, has_deadline=True) if manners.deadline is not None else None
    pressed: list[Callable[[bool], None]] = [] if state is None else [state.press]

    def press(is_last_call: bool) -> None:
        for each in pressed:
            each(is_last_call)

    options = GovernorOptions(
        job_class,
        frozenset(os.sched_getaffinity(0)),
        threads,
        Path(runtime_folder()),
        settings.share_milli,
        None if manners.deadline is None else parse_deadline(manners.deadline),
        work,
        press,
    )
    with ExitStack() as stack:
        governor = Governor(build_policy(settings), options, log=_open_log(stack, CPU, settings), note=note)
        stack.enter_context(governor)
        if state is not None:
            # After the governor, whose own thread stays as it is: it has to see in time that the deadline is near.
            stack.enter_context(state)
        device = stack.enter_context(
            paced_device(
                engine,
                DeviceManners(
                    job_class,
                    settings.impact_milli_max,
                    settings.share_milli,
                    options.folder,
                    stored_profile(),
                    lambda: work().likely_bytes - governor.counts.size_bytes,
                    partial(_open_log, stack),
                    note,
                ),
            )
        )
        if device is not None:
            pressed.append(device.press)
            if (sharing := share_device(manners)) is not None:
                note(sharing)
        yield governor


def _open_log(stack: ExitStack, device: str, settings: PolicySettings) -> DecisionLog | None:
    """A log of what is decided for a device, in the folder that OHDIFF_DECISION_LOG names."""
    folder = environment.variable("DECISION_LOG")
    if folder is None:
        return None
    file = stack.enter_context((Path(folder) / f"{device}.log").open("wb"))
    return DecisionLog(file.write, settings, "cpu" if device == CPU else "cuda")


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
