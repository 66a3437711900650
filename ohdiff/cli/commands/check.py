"""ohdiff check: is everything there, and is it what was stored?"""

from __future__ import annotations

import re
import secrets

import click

from ohdiff.errors import EXIT_DONE, EXIT_INTEGRITY, UsageError
from ohdiff.operations.check import CheckResult, Part, Problem, check

from ..access import opened
from ..environment import processor_count
from ..progress import reporting
from ..shared import Output, shared
from ..text import counted, format_duration, format_size, path_fields, shown

_TOUCHED_SHOWN = 20


@click.command("check")
@click.option(
    "--read-data",
    "part",
    is_flag=False,
    flag_value="100%",
    metavar="[PART]",
    help="Read packs, too: all, or a share such as 1/7 (the first of seven) or 10%.",
)
@shared()
def check_command(output: Output, part: str | None) -> int:
    """Check that every snapshot's trees lead to chunks that are there.

    With --read-data, that they are what was stored. Damage is traced to the files that it touches; nothing is changed.
    """
    share = None if part is None else parse_part(part, secrets.randbelow(1 << 30))
    with opened(output) as access, reporting(output, "check") as reporter:
        result = check(access.repository, share, reporter, workers=max(2, min(processor_count(), 8)))
        seconds = reporter.elapsed_seconds
    for problem in result.problems:
        _show(output, problem)
    _summarize(output, result, seconds)
    return EXIT_INTEGRITY if result.problems else EXIT_DONE


def parse_part(text: str, draw: int) -> Part:
    """The share of packs that `n/t` or `p%` means; for a percentage `draw` decides which."""
    slices = re.fullmatch(r"(\d+)/(\d+)", text)
    if slices and 1 <= int(slices[1]) <= int(slices[2]):
        return Part(int(slices[1]), int(slices[2]))
    percentage = re.fullmatch(r"(\d+(?:\.\d+)?)%", text)
    if percentage and 0 < float(percentage[1]) <= 100:
        count = int(100 / float(percentage[1]))
        return Part(draw % count + 1, count)
    raise UsageError(f"{text!r} is not a part of the packs", hint="write it like 1/7 or 10%")


def _show(output: Output, problem: Problem) -> None:
    if output.is_json:
        touched = [{"snapshot": snapshot, **path_fields(path)} for snapshot, path in problem.touched]
        output.record("problem", message=problem.message, item=problem.item, touched=touched)
        return
    output.line(f"problem: {problem.message}")
    for snapshot, path in problem.touched[:_TOUCHED_SHOWN]:
        output.line(f"  touches {shown(path)} in snapshot {snapshot}")
    if len(problem.touched) > _TOUCHED_SHOWN:
        output.line(f"  and {len(problem.touched) - _TOUCHED_SHOWN:,} more: see --json")


def _summarize(output: Output, result: CheckResult, seconds: float) -> None:
    text = [
        f"checked {counted(result.snapshots, 'snapshot')}, {counted(result.packs, 'pack')}, "
        f"{counted(result.chunks, 'chunk')} in {format_duration(seconds)}",
    ]
    if result.read_packs:
        text.append(f"read {counted(result.read_packs, 'pack')}, {format_size(result.read_size)}")
    if result.unused_packs:
        text.append(f"{counted(result.unused_packs, 'pack')} of interrupted runs: harmless")
    text.append(
        "no problems found"
        if not result.problems
        else f"{counted(len(result.problems), 'problem')}: the files named above cannot be restored whole; "
        "snapshot them again, and fetch a sound copy of the damaged objects if there is one"
    )
    output.summary(
        text,
        snapshots=result.snapshots,
        packs=result.packs,
        chunks=result.chunks,
        read_packs=result.read_packs,
        read_bytes=result.read_size,
        unused_packs=result.unused_packs,
        num_errors=len(result.problems),
        total_duration=seconds,
    )
