"""Commands and pipelines as values, and running one to its end with its time, CPU and peak memory.

The measuring itself is done by launch.py in a small process of its own. A command runs in its own session, so that an
interruption ends it and all its children, and nothing else.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LAUNCHER = Path(__file__).with_name("launch.py")
STDERR_LINES_MAX = 10
TERMINATION_SECONDS_MAX = 10


@dataclass(frozen=True, slots=True)
class Command:
    """A pipeline of one or more programs; `stdout` takes what the last one writes."""

    pipeline: tuple[tuple[str, ...], ...]
    working_folder: Path | None = None
    stdout: Path | None = None

    def __str__(self) -> str:
        line = " | ".join(map(shlex.join, self.pipeline))
        line = f"{line} > {shlex.quote(str(self.stdout))}" if self.stdout else line
        return f"cd {shlex.quote(str(self.working_folder))} && {line}" if self.working_folder else line


@dataclass(frozen=True, slots=True)
class Usage:
    """What a pipeline used: CPU summed over its processes and their children, memory of the largest one."""

    wall_seconds: float
    user_seconds: float
    system_seconds: float
    peak_rss_bytes: int

    @property
    def cpu_seconds(self) -> float:
        return self.user_seconds + self.system_seconds


class CommandFailedError(Exception):
    """A command ended with another exit code than 0; carries the command, the codes, and its last words."""

    def __init__(self, command: Command, exit_codes: list[int], last_words: str) -> None:
        super().__init__(f"{command}\nexit codes {exit_codes}\n{last_words}".rstrip())
        self.command = command
        self.exit_codes = exit_codes
        self.last_words = last_words


def one(*program: str | Path, working_folder: Path | None = None) -> Command:
    """The command of a single program."""
    return Command((tuple(map(str, program)),), working_folder)


def run(command: Command, environment: Mapping[str, str], log_folder: Path) -> Usage:
    """Run to the end; CommandFailedError unless every program of the pipeline ends with 0.

    Parameters
    ----------
    environment : the whole environment of the programs.
    log_folder : gets what they write on stderr, and on stdout unless the command keeps that.
    """
    report, stdout, stderr = (log_folder / name for name in ("usage", "stdout", "stderr"))
    words = [word for program in command.pipeline for word in ("|", *program)][1:]
    launcher = [sys.executable, "-I", "-S", str(LAUNCHER), str(report), str(command.stdout or stdout), str(stderr)]
    report.unlink(missing_ok=True)
    _wait([*launcher, *words], command.working_folder, environment)
    if not report.exists():
        raise CommandFailedError(command, [], "the launcher was ended from outside")
    wall, user, system, peak, *codes = report.read_text().split()
    if any(code != "0" for code in codes):
        raise CommandFailedError(command, list(map(int, codes)), _last_lines(stderr))
    return Usage(float(wall), float(user), float(system), int(peak))


def _wait(words: list[str], working_folder: Path | None, environment: Mapping[str, str]) -> None:
    process = subprocess.Popen(words, cwd=working_folder, env=environment, start_new_session=True)
    try:
        process.wait()
    except BaseException:
        _end_session(process)
        raise


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """Ask the launcher and its programs to end, then make them."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(TERMINATION_SECONDS_MAX)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def _last_lines(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-STDERR_LINES_MAX:])
