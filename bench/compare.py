"""Compare ohdiff with whichever of restic, borg, casync and tar|zstd is installed, in one run and in turn.

Each corpus goes through four phases: a first backup, another with nothing changed, one of version 2, and a restore of
the latest, which is compared with what was backed up. README.md says how to read the results.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmark.corpus import Corpus, is_updating_possible, measure_tree, parse_corpus
from benchmark.errors import SetupError
from benchmark.machine import describe_machine
from benchmark.places import Places
from benchmark.plot import is_plotting_possible, write_plot
from benchmark.report import MB, Results, document, markdown, write_json, write_whole
from benchmark.rounds import FIRST, PHASES, V2, Failure, Round, Run
from benchmark.tools import Tool, all_tools

EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, 130


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--corpus",
        action="append",
        required=True,
        metavar="NAME=V1[:V2]",
        help="a corpus: its name and the folders of its one or two versions; may be given more than once",
    )
    parser.add_argument("--tools", metavar="NAMES", help="comma-separated; default: those that are installed")
    parser.add_argument("--phases", metavar="NAMES", default=",".join(PHASES), help="default: %(default)s")
    parser.add_argument("-n", type=int, default=3, metavar="COUNT", dest="repetitions", help="rounds; default: 3")
    parser.add_argument("--ohdiff", default="ohdiff", metavar="PATH", help="what to run; default: the one on PATH")
    parser.add_argument(
        "--work-dir",
        type=Path,
        default=Path(tempfile.gettempdir()),
        metavar="FOLDER",
        help="where repositories and caches are made; default: %(default)s",
    )
    parser.add_argument(
        "--copies-dir",
        type=Path,
        metavar="FOLDER",
        help="where working copies go; default: memory, if they fit",
    )
    parser.add_argument(
        "--no-sync", action="store_true", help="do not flush earlier writes before each command: quicker, and noisier"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the markdown table, else it is printed")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write charts (.png or .svg); needs matplotlib")
    return parser


def choose_tools(names: str | None, ohdiff: str) -> list[Tool]:
    """The tools to run: a named one is a demand, others are left out when they are missing."""
    tools = {tool.name: tool for tool in all_tools(ohdiff)}
    if names is None:
        for tool in tools.values():
            if tool.missing():
                say(f"left out: {tool.name} ({', '.join(tool.missing())} is not installed)")
        return [tool for tool in tools.values() if not tool.missing()]
    chosen = chosen_names(names, tuple(tools), "tool")
    for name in chosen:
        if tools[name].missing():
            raise SetupError(f"{name} cannot run: {', '.join(tools[name].missing())} is not installed")
    return [tools[name] for name in chosen]


def choose_phases(names: str) -> list[str]:
    """The phases to run, in their order."""
    chosen = chosen_names(names, PHASES, "phase")
    if FIRST not in chosen:
        raise SetupError(f"every other phase builds on phase {FIRST!r}: name it too")
    return [phase for phase in PHASES if phase in chosen]


def chosen_names(names: str, known: Sequence[str], kind: str) -> list[str]:
    chosen = names.split(",")
    for name in chosen:
        if name not in known:
            raise SetupError(f"{name!r} is no {kind}; there are {', '.join(known)}")
    return chosen


def parse_corpora(texts: Sequence[str]) -> list[Corpus]:
    try:
        corpora = [parse_corpus(text) for text in texts]
    except ValueError as error:
        raise SetupError(str(error)) from error
    if len({corpus.name for corpus in corpora}) < len(corpora):
        raise SetupError("two corpora have the same name")
    return corpora


def corpus_phases(corpus: Corpus, phases: Sequence[str]) -> list[str]:
    """The phases that this corpus can go through."""
    return [phase for phase in phases if phase != V2 or corpus.v2 is not None]


class Comparison:
    """A run of the bench: what to do, and what has been found."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._corpora = parse_corpora(arguments.corpus)
        self._phases = choose_phases(arguments.phases)
        self._tools = choose_tools(arguments.tools, arguments.ohdiff)
        self._check()
        sizes = {corpus.name: list(map(measure_tree, corpus.roots())) for corpus in self._corpora}
        self._room_bytes = max(size.room_bytes for pair in sizes.values() for size in pair)
        versions = {tool.name: tool.version() for tool in self._tools}
        self.results = Results(describe_machine(), {}, versions, sizes, arguments.repetitions)

    def run(self) -> None:
        """All rounds of all corpora; results are written after each measurement."""
        arguments = self._arguments
        with Places(arguments.work_dir, arguments.copies_dir, self._room_bytes) as places:
            self.results.places = places.describe()
            for place, words in self.results.places.items():
                say(f"{place} go to {words}")
            for corpus in self._corpora:
                for number in range(1, arguments.repetitions + 1):
                    one_round = Round(corpus, self._tools, number, places, not arguments.no_sync)
                    for outcome in one_round.run(corpus_phases(corpus, self._phases)):
                        self._take(outcome)

    def write(self) -> None:
        """Write the table and the JSON document with what has been found so far."""
        if self._arguments.json:
            write_json(self._arguments.json, document(self.results))
        if self._arguments.table:
            write_whole(self._arguments.table, markdown(self.results))

    def finish(self) -> None:
        """Write everything, the charts too, and print the table unless it goes to a file."""
        self.write()
        if not self._arguments.table:
            sys.stdout.write(markdown(self.results))
        if self._arguments.plot and is_plotting_possible():
            write_plot(self._arguments.plot, self.results)
        elif self._arguments.plot:
            say("no plot: matplotlib is not installed (pip install matplotlib)")

    def _check(self) -> None:
        if not self._tools:
            raise SetupError("none of the tools is installed")
        if self._arguments.repetitions < 1:
            raise SetupError("-n must be at least 1")
        for folder in (self._arguments.work_dir, self._arguments.copies_dir):
            if folder and not folder.is_dir():
                raise SetupError(f"{folder}: no such folder")
            if folder and not os.access(folder, os.W_OK | os.X_OK):
                raise SetupError(f"{folder}: cannot be written to")
        needs_update = V2 in self._phases and any(corpus.v2 for corpus in self._corpora)
        if needs_update and not is_updating_possible():
            raise SetupError("phase 'v2' needs rsync, which is not installed")

    def _take(self, outcome: Run | Failure) -> None:
        self.results.add(outcome)
        self.write()
        head = f"{outcome.corpus} {outcome.repetition}/{self._arguments.repetitions} {outcome.phase:9} {outcome.tool:8}"
        if isinstance(outcome, Failure):
            say(f"{head} FAILED: {outcome.message}")
            return
        say(f"{head} {outcome.usage.wall_seconds:7.2f} s {outcome.stored_bytes / MB:9.1f} MB")
        if outcome.differences and outcome.differences.counts:
            say(f"  restored with differences: {outcome.differences.counts}, such as {outcome.differences.examples}")


def say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def main() -> int:
    parser = argument_parser()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        comparison = Comparison(parser.parse_args())
    except SetupError as error:
        parser.error(str(error))
    try:
        comparison.run()
    except KeyboardInterrupt:
        comparison.results.is_interrupted = True
        say("interrupted; what was measured is kept")
    comparison.finish()
    if comparison.results.is_interrupted:
        return EXIT_INTERRUPTED
    return EXIT_DONE if comparison.results.is_clean else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
