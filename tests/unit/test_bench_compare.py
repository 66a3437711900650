"""The comparison bench in small: every tool that is installed must finish and restore what it backed up.

Times are never judged. Faults come from a small backup program of our own, run in place of ohdiff.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from benchmark.corpus import measure_tree, parse_corpus, update_tree  # noqa: E402
from benchmark.equality import compare_trees  # noqa: E402
from benchmark.places import Places, is_room_in_memory  # noqa: E402
from benchmark.report import spread, write_whole  # noqa: E402
from benchmark.running import Command, CommandFailedError, one, run  # noqa: E402

OHDIFF = Path(sys.executable).with_name("ohdiff")
PEERS = {"restic": ["restic"], "borg": ["borg"], "casync": ["casync"], "tar-zstd": ["tar", "zstd"]}
NEEDS_RSYNC = pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync is not installed")
WAIT_SECONDS_MAX = 60

# One copy is all this program keeps. What it does wrong is inserted.
FAKE = """#!/bin/sh
set -e
verb=$1 repository=$4 place=$7 target=$9
{before}
case $verb in
  --version) echo "fake 1" ;;
  snapshot) rm -rf "$repository/copy"; cp -a "$place" "$repository/copy" ;;
  restore) cp -a "$repository/copy/." "$target" ;;
esac
{after}
"""


def make_tree(root: Path, edition: int) -> Path:
    """A small tree with every kind of entry that is compared; editions differ in some of their files."""
    (root / "deep" / "er").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "same.txt").write_text("stays as it is\n" * 500)
    (root / "deep" / "changed.bin").write_bytes(bytes([edition]) * 70_000)
    (root / "deep" / "er" / f"only-{edition}").write_text("")
    (root / "program").write_text("#!/bin/sh\n")
    (root / "program").chmod(0o751)
    (root / "link").symlink_to("deep/changed.bin")
    (root / "nowhere").symlink_to("no/such/target")
    Path(os.fsdecode(os.fsencode(root) + b"/caf\xe9")).write_text("a name that is not UTF-8")
    return root


@pytest.fixture
def corpus(tmp_path: Path) -> tuple[Path, Path]:
    return make_tree(tmp_path / "v1", 1), make_tree(tmp_path / "v2", 2)


def make_fake(folder: Path, before: str = "", after: str = "") -> Path:
    program = folder / "fake"
    program.write_text(FAKE.format(before=before, after=after))
    program.chmod(0o755)
    return program


def compare_command(folder: Path, corpus: tuple[Path, Path], ohdiff: Path, *options: str) -> list[str]:
    work = folder / "work"
    work.mkdir()
    places = ("--work-dir", str(work), "--json", str(folder / "results.json"), "--table", str(folder / "table.md"))
    bench = (sys.executable, str(BENCH / "compare.py"), "--no-sync", "--corpus", f"tiny={':'.join(map(str, corpus))}")
    return [*bench, "--ohdiff", str(ohdiff), *places, *options]


def compare(folder: Path, corpus: tuple[Path, Path], ohdiff: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = compare_command(folder, corpus, ohdiff, *options)
    return subprocess.run(command, capture_output=True, text=True, check=False)


def read_results(folder: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return results


def installed_tools() -> list[str]:
    peers = [name for name, programs in PEERS.items() if all(map(shutil.which, programs))]
    return ["ohdiff", *peers]


def phases_here() -> list[str]:
    return ["first", "unchanged", "v2", "restore"] if shutil.which("rsync") else ["first", "unchanged", "restore"]


def expected_order(rounds: int, tools: list[str]) -> list[tuple[int, str, str]]:
    return [
        (number, phase, tool)
        for number in range(1, rounds + 1)
        for phase in phases_here()
        for tool in tools
        if (phase, tool) != ("unchanged", "tar-zstd")
    ]


def order_of(results: dict[str, Any]) -> list[tuple[int, str, str]]:
    return [(each["repetition"], each["phase"], each["tool"]) for each in results["runs"]]


def test_every_installed_tool_restores_what_it_backed_up(tmp_path: Path, corpus: tuple[Path, Path]) -> None:
    plot = tmp_path / "plot.svg"
    done = compare(tmp_path, corpus, OHDIFF, "-n", "1", "--phases", ",".join(phases_here()), "--plot", str(plot))
    assert done.returncode == 0, done.stderr
    results = read_results(tmp_path)
    assert order_of(results) == expected_order(1, installed_tools())
    assert all(each["usage"]["peak_rss_bytes"] > 0 and each["stored_bytes"] > 0 for each in results["runs"])
    for restore in (each for each in results["runs"] if each["phase"] == "restore"):
        # GNU tar's own format keeps whole seconds.
        allowed = {"mtime fraction"} if restore["tool"] == "tar-zstd" else set()
        assert set(restore["differences"]["counts"]) <= allowed, restore
    assert "### tiny: v1 5 files" in (tmp_path / "table.md").read_text()
    assert plot.exists() if find_spec("matplotlib") else "matplotlib is not installed" in done.stderr
    assert list((tmp_path / "work").iterdir()) == []


def test_tools_take_turns_within_each_phase_of_each_round(tmp_path: Path, corpus: tuple[Path, Path]) -> None:
    tools = [tool for tool in installed_tools() if tool in ("ohdiff", "tar-zstd")]
    options = ("-n", "2", "--tools", ",".join(tools), "--phases", ",".join(phases_here()))
    done = compare(tmp_path, corpus, make_fake(tmp_path), *options)
    assert done.returncode == 0, done.stderr
    results = read_results(tmp_path)
    assert order_of(results) == expected_order(2, tools)
    assert {summary["repetitions"] for summary in results["summary"]} == {2}


def test_the_results_name_the_machine_the_places_the_versions_and_the_commands(
    tmp_path: Path, corpus: tuple[Path, Path]
) -> None:
    fake = make_fake(tmp_path)
    done = compare(tmp_path, corpus, fake, "-n", "1", "--tools", "ohdiff", "--phases", "first,restore")
    assert done.returncode == 0, done.stderr
    results = read_results(tmp_path)
    assert {"processor", "cores", "memory bytes", "system", "python", "date"} <= set(results["machine"])
    assert set(results["places"]) == {"repositories", "working copies", "restores"}
    assert results["tools"] == {"ohdiff": "fake 1"}
    assert [run["command"].split()[1] for run in results["runs"]] == ["snapshot", "restore"]


def test_a_restore_that_loses_bytes_fails_the_bench(tmp_path: Path, corpus: tuple[Path, Path]) -> None:
    fake = make_fake(tmp_path, after='[ "$verb" != restore ] || printf x >> "$target/same.txt"')
    done = compare(tmp_path, corpus, fake, "-n", "1", "--tools", "ohdiff", "--phases", "first,restore")
    assert done.returncode == 1
    assert "content" in read_results(tmp_path)["runs"][-1]["differences"]["counts"]
    assert "1 content" in (tmp_path / "table.md").read_text()


def test_a_tool_that_fails_is_named_and_the_others_go_on(tmp_path: Path, corpus: tuple[Path, Path]) -> None:
    fake = make_fake(tmp_path, before='[ "$verb" != snapshot ] || { echo "the disk is full" >&2; exit 30; }')
    tools = [tool for tool in installed_tools() if tool in ("ohdiff", "tar-zstd")]
    done = compare(tmp_path, corpus, fake, "-n", "2", "--tools", ",".join(tools), "--phases", "first,restore")
    assert done.returncode == 1
    results = read_results(tmp_path)
    assert [(failure["tool"], failure["phase"]) for failure in results["failures"]] == [("ohdiff", "first")] * 2
    assert "exit codes [30]\nthe disk is full" in results["failures"][0]["message"]
    assert [run["tool"] for run in results["runs"]] == ["tar-zstd"] * 4 * (len(tools) - 1)
    assert "FAILED: ohdiff, first of tiny" in (tmp_path / "table.md").read_text()


def test_an_interruption_ends_the_running_tool_and_keeps_what_was_measured(
    tmp_path: Path, corpus: tuple[Path, Path]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    hang = f'exec 3> "{pipe}"; echo started >&3; exec sleep 1000'
    fake = make_fake(tmp_path, before=f'[ ! -d "$repository/copy" ] || {{ {hang}; }}')
    command = compare_command(tmp_path, corpus, fake, "-n", "1", "--tools", "ohdiff", "--phases", "first,unchanged")
    bench = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    assert read_when_ready(reader) == b"started\n"
    bench.send_signal(signal.SIGTERM)
    assert bench.wait(WAIT_SECONDS_MAX) == 130
    assert read_when_ready(reader) == b"", "the tool still holds the pipe open"
    os.close(reader)
    results = read_results(tmp_path)
    assert results["is_interrupted"]
    assert [run["phase"] for run in results["runs"]] == ["first"]
    assert "Interrupted" in (tmp_path / "table.md").read_text()
    assert list((tmp_path / "work").iterdir()) == []


def read_when_ready(reader: int) -> bytes:
    ready, _, _ = select.select([reader], [], [], WAIT_SECONDS_MAX)
    assert ready, "nothing came"
    return os.read(reader, 100)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--corpus", "other=/no/such/folder"], "no such folder"),
        (["--corpus", "nameless"], "NAME=V1[:V2]"),
        (["--tools", "rsync"], "is no tool"),
        (["--tools", "ohdiff", "--ohdiff", "/no/such/ohdiff"], "is not installed"),
        (["--tools", "ohdiff", "--ohdiff", "false"], "exit code 1"),
        (["--phases", "restore"], "builds on phase 'first'"),
        (["-n", "0"], "-n must be at least 1"),
    ],
)
def test_a_bench_that_cannot_run_says_why(
    tmp_path: Path, corpus: tuple[Path, Path], options: list[str], words: str
) -> None:
    done = compare(tmp_path, corpus, make_fake(tmp_path), *options)
    assert done.returncode == 2
    assert words in done.stderr
    assert not (tmp_path / "results.json").exists()


def change_content(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"!")


def change_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("deep/changed.biN")


def change_type(path: Path) -> None:
    path.unlink()
    path.write_text("deep/changed.bin")


def keeping_time(change: Callable[[Path], None], name: str) -> Callable[[Path], None]:
    """`change` on one entry of the top folder, which then gets its old times back."""

    def apply(root: Path) -> None:
        status = (root / name).lstat()
        change(root / name)
        os.utime(root / name, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)

    return apply


def shift_time(root: Path, nanoseconds: int) -> None:
    path = root / "same.txt"
    os.utime(path, ns=(0, path.stat().st_mtime_ns + nanoseconds))


CHANGES: list[tuple[str, Callable[[Path], object]]] = [
    ("missing", lambda root: (root / "link").unlink()),
    ("extra", lambda root: (root / "new").write_text("")),
    ("type", keeping_time(change_type, "link")),
    ("content", keeping_time(change_content, "same.txt")),
    ("link", keeping_time(change_link, "link")),
    ("mode", lambda root: (root / "program").chmod(0o750)),
    ("mtime", lambda root: shift_time(root, -2_000_000_000)),
    ("mtime fraction", lambda root: shift_time(root, 1)),
]


@pytest.mark.parametrize(("aspect", "change"), CHANGES, ids=[aspect for aspect, _ in CHANGES])
def test_one_change_is_found_and_called_by_its_name(
    tmp_path: Path, aspect: str, change: Callable[[Path], object]
) -> None:
    ours = make_tree(tmp_path / "ours", 1)
    os.utime(ours / "same.txt", ns=(0, 1_500_000_000_250_000_000))
    shutil.copytree(ours, tmp_path / "theirs", symlinks=True)
    assert compare_trees(ours, tmp_path / "theirs").counts == {}
    change(tmp_path / "theirs")
    assert compare_trees(ours, tmp_path / "theirs").counts == {aspect: 1}


def test_a_restore_that_made_nothing_is_a_difference(tmp_path: Path) -> None:
    make_tree(tmp_path / "ours", 1)
    assert compare_trees(tmp_path / "ours", tmp_path / "nothing").is_content_lost


@NEEDS_RSYNC
def test_an_update_makes_version_2_and_leaves_equal_files_alone(corpus: tuple[Path, Path]) -> None:
    v1, v2 = corpus
    before = (v1 / "same.txt").stat()
    update_tree(v2, v1)
    after = (v1 / "same.txt").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert not compare_trees(v2, v1).is_content_lost


def test_the_size_of_a_tree_counts_files_folders_links_and_bytes(tmp_path: Path) -> None:
    size = measure_tree(make_tree(tmp_path / "tree", 1))
    assert (size.files, size.folders, size.links) == (5, 3, 2)
    assert size.content_bytes == 500 * 15 + 70_000 + 10 + 24
    assert size.room_bytes > size.content_bytes


def test_a_corpus_has_one_or_two_versions(tmp_path: Path) -> None:
    assert parse_corpus(f"one={tmp_path}").roots() == [tmp_path]
    assert parse_corpus(f"two={tmp_path}:/").roots() == [tmp_path, Path("/")]


def test_memory_is_counted_for_the_command_and_not_for_who_starts_it(tmp_path: Path) -> None:
    ballast = bytearray(os.urandom(1 << 10) * (100 << 10))
    small = run(one("true"), os.environ, tmp_path)
    large = run(one(sys.executable, "-c", "bytearray(80 << 20)[::4096]"), os.environ, tmp_path)
    assert small.peak_rss_bytes < 40 << 20 < len(ballast)
    assert large.peak_rss_bytes > 80 << 20


def test_a_pipeline_keeps_its_output_and_sums_its_cpu(tmp_path: Path) -> None:
    output = tmp_path / "output"
    usage = run(Command((("echo", "a b"), ("tr", "a", "c")), stdout=output), os.environ, tmp_path)
    assert output.read_text() == "c b\n"
    assert usage.cpu_seconds == usage.user_seconds + usage.system_seconds


@pytest.mark.parametrize(
    ("pipeline", "codes"), [((("false",), ("cat",)), [1, 0]), ((("no-such-program-here",),), [127])]
)
def test_a_program_that_fails_anywhere_in_a_pipeline_is_an_error(
    tmp_path: Path, pipeline: tuple[tuple[str, ...], ...], codes: list[int]
) -> None:
    with pytest.raises(CommandFailedError) as caught:
        run(Command(pipeline), os.environ, tmp_path)
    assert caught.value.exit_codes == codes


def test_places_leave_nothing_behind(tmp_path: Path) -> None:
    with Places(tmp_path, None, tree_room_bytes=1) as places:
        made = {places.work, places.copies, places.restores}
        assert all(folder.is_dir() for folder in made)
        assert set(places.describe()) == {"repositories", "working copies", "restores"}
    assert not any(folder.exists() for folder in made)


def test_a_tree_too_large_for_memory_is_copied_beside_the_repositories(tmp_path: Path) -> None:
    assert not is_room_in_memory(1 << 60)
    with Places(tmp_path, None, tree_room_bytes=1 << 60) as places:
        assert {places.work.parent, places.copies.parent, places.restores.parent} == {tmp_path}


def test_working_copies_go_where_they_are_wanted(tmp_path: Path) -> None:
    (tmp_path / "wanted").mkdir()
    with Places(tmp_path, tmp_path / "wanted", tree_room_bytes=1) as places:
        assert places.copies.parent == tmp_path / "wanted"


def test_a_report_replaces_a_file_but_writes_into_a_pipe(tmp_path: Path) -> None:
    file, pipe = tmp_path / "file", tmp_path / "pipe"
    file.write_text("old")
    write_whole(file, "new")
    assert file.read_text() == "new"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, "words")
    assert os.read(reader, 100) == b"words"
    os.close(reader)
    assert pipe.is_fifo()


def test_a_spread_is_the_median_and_the_range() -> None:
    figures = spread([3.0, 1.0, 2.0, 10.0])
    assert (figures.median, figures.low, figures.high) == (2.5, 1.0, 10.0)
