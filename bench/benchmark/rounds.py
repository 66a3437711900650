"""One round: every tool goes through the phases on one working copy, in turn within each phase (A B C, A B C, ...).

A tool that fails is left out of the rest of its round, and the failure is kept; the others go on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmark.corpus import Corpus, copy_tree, stored_bytes, update_tree, warm
from benchmark.equality import Differences, compare_trees
from benchmark.places import Places
from benchmark.running import Command, CommandFailedError, Usage, run
from benchmark.tools import Tool

FIRST, UNCHANGED, V2, RESTORE = PHASES = ("first", "unchanged", "v2", "restore")


@dataclass(frozen=True, slots=True)
class Run:
    """One timed command and what it left; `differences` only after a restore."""

    corpus: str
    repetition: int
    phase: str
    tool: str
    command: str
    usage: Usage
    stored_bytes: int
    added_bytes: int
    differences: Differences | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A command that should have worked, with its last words."""

    corpus: str
    repetition: int
    phase: str
    tool: str
    message: str


class Contender:
    """A tool in one round, with a state folder of its own."""

    def __init__(self, tool: Tool, state: Path, tree: Path, flushes: bool) -> None:
        self.tool = tool
        self.flushes = flushes
        self.tree = tree
        self.stored_bytes = 0
        self._state = state
        self._last_label = ""
        self._environment = tool.environment(state)

    def init(self) -> None:
        """Make the repository, in a new state folder."""
        self.tool.prepare(self._state)
        command = self.tool.init(self._state)
        if command:
            run(command, self._environment, self._state)
        self.stored_bytes = stored_bytes(self.tool.repository(self._state))

    def backup(self, label: str) -> tuple[Command, Usage]:
        self._last_label = label
        return self._timed(self.tool.backup(self._state, self.tree, label))

    def restore(self, target: Path) -> tuple[Command, Usage]:
        return self._timed(self.tool.restore(self._state, self.tree, self._last_label, target))

    def restored(self, target: Path) -> Path:
        return self.tool.restored(self.tree, target)

    def added_bytes(self) -> int:
        """By how much the repository has grown since the last call."""
        before = self.stored_bytes
        self.stored_bytes = stored_bytes(self.tool.repository(self._state))
        return self.stored_bytes - before

    def _timed(self, command: Command) -> tuple[Command, Usage]:
        if self.flushes:
            os.sync()  # what others wrote must not be flushed at this one's expense
        return command, run(command, self._environment, self._state)


class Round:
    """Repetition `number` of all phases on one corpus; `flushes` what was written before each timed command."""

    def __init__(self, corpus: Corpus, tools: Sequence[Tool], number: int, places: Places, flushes: bool) -> None:
        self._corpus = corpus
        self._number = number
        self._places = places
        self._name = f"{corpus.name}-{number}"
        self._work = places.work / self._name
        self._tree = places.copies / self._name
        self._contenders = [Contender(tool, self._work / tool.name, self._tree, flushes) for tool in tools]

    def run(self, phases: Sequence[str]) -> Iterator[Run | Failure]:
        """Do `phases`, which are among PHASES, in order and begin with FIRST; each outcome as it comes."""
        copy_tree(self._corpus.v1, self._tree)
        yield from self._attempt_all("init")
        for phase in phases:
            if phase == V2 and self._corpus.v2 is not None:
                update_tree(self._corpus.v2, self._tree)
            warm(self._tree)
            yield from self._attempt_all(phase)
        self._places.discard(self._tree)
        self._places.discard(self._work)

    def _attempt_all(self, phase: str) -> Iterator[Run | Failure]:
        for contender in list(self._contenders):
            if phase == UNCHANGED and not contender.tool.has_increments:
                continue
            try:
                outcome = self._attempt(contender, phase)
            except CommandFailedError as error:
                self._contenders.remove(contender)
                yield Failure(self._corpus.name, self._number, phase, contender.tool.name, str(error))
                continue
            if outcome:
                yield outcome

    def _attempt(self, contender: Contender, phase: str) -> Run | None:
        if phase == "init":
            contender.init()
            return None
        if phase == RESTORE:
            return self._restore(contender)
        command, usage = contender.backup(phase)
        return self._outcome(contender, phase, command, usage)

    def _restore(self, contender: Contender) -> Run:
        target = self._places.restores / self._name / contender.tool.name
        target.mkdir(parents=True)
        command, usage = contender.restore(target)
        differences = compare_trees(self._tree, contender.restored(target))
        self._places.discard(target)
        return self._outcome(contender, RESTORE, command, usage, differences)

    def _outcome(
        self,
        contender: Contender,
        phase: str,
        command: Command,
        usage: Usage,
        differences: Differences | None = None,
    ) -> Run:
        added = contender.added_bytes()
        stored = contender.stored_bytes
        name = contender.tool.name
        return Run(self._corpus.name, self._number, phase, name, str(command), usage, stored, added, differences)
