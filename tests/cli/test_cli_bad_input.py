"""Bad input: each kind has its exit code and a sentence, and harms nothing that is committed."""

from __future__ import annotations

import json
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from conftest import Home, records

from ohdiff import errors

Run = Callable[..., Result]
Shell = Callable[..., subprocess.CompletedProcess[bytes]]


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file below a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rewrite(path: Path, data: bytes) -> None:
    """Replace the bytes of a stored object, which is read-only."""
    path.chmod(0o600)
    path.write_bytes(data)


def flip(path: Path) -> None:
    """Change one byte in the middle of a stored object."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x40
    rewrite(path, bytes(data))


def data_pack(repository: Path) -> Path:
    """The largest pack: it holds the files."""
    return max(
        (path for path in (repository / "packs").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )


def test_no_repository(run: Run, home: Home, tmp_path: Path) -> None:
    result = run("-r", tmp_path / "none", "snapshots")
    assert result.exit_code == errors.EXIT_NO_REPOSITORY
    assert str(tmp_path / "none") in result.stderr


def test_an_unknown_kind_of_storage(run: Run, home: Home) -> None:
    result = run("-r", "gopher://host/path", "snapshots")
    assert result.exit_code == errors.EXIT_USAGE
    assert "gopher" in result.stderr


@pytest.mark.parametrize("selector", ["ffffffff", "latest~9", "latest:/no/such"])
def test_no_such_snapshot_or_path(stored: Path, run: Run, selector: str) -> None:
    assert run("ls", selector).exit_code == errors.EXIT_NO_SNAPSHOT


def test_an_ambiguous_id(stored: Path, run: Run, source: Path) -> None:
    seen: dict[str, int] = {}
    for _ in range(17):
        run("snapshot", source / "empty", "-q")
    for path in (stored / "snapshots").iterdir():
        seen[path.name[0]] = seen.get(path.name[0], 0) + 1
    prefix = next(letter for letter, count in seen.items() if count > 1)
    result = run("ls", prefix)
    assert result.exit_code == errors.EXIT_NO_SNAPSHOT
    assert "snapshots have" in result.stderr


@pytest.mark.parametrize("selector", ["LATEST", "no such", "xyz"])
def test_what_cannot_be_a_snapshot(stored: Path, run: Run, selector: str) -> None:
    assert run("ls", selector).exit_code == errors.EXIT_USAGE


@pytest.mark.parametrize("name", ["flipped", "truncated", "empty"])
def test_a_damaged_config(stored: Path, run: Run, source: Path, name: str) -> None:
    config = stored / "config"
    data = config.read_bytes()
    damaged = {"flipped": data.replace(b'"avg_size":32768', b'"avg_size":32769'), "truncated": data[:40], "empty": b""}
    rewrite(config, damaged[name])
    before = contents(stored)
    result = run("snapshot", source)
    assert result.exit_code == errors.EXIT_INTEGRITY
    assert "config" in result.stderr
    assert contents(stored) == before


def test_a_repository_of_a_newer_format_is_refused_before_anything_is_written(
    stored: Path, run: Run, source: Path
) -> None:
    config = stored / "config"
    rewrite(config, config.read_bytes().replace(b'"mandatory_features":[]', b'"mandatory_features":["time-travel"]'))
    before = contents(stored)
    result = run("snapshot", source)
    assert result.exit_code == errors.EXIT_FAILED
    assert "time-travel" in result.stderr
    assert "upgrade" in result.stderr
    assert contents(stored) == before


@pytest.mark.parametrize("folder", ["snapshots", "index"])
@pytest.mark.parametrize("is_cached", [True, False])
def test_a_damaged_snapshot_or_index_is_found(
    stored: Path, run: Run, folder: str, is_cached: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (path,) = (stored / folder).iterdir()
    flip(path)
    if not is_cached:
        monkeypatch.setenv("OHDIFF_CACHE_DIR", str(tmp_path / "fresh"))
    result = run("check", "--json")
    assert result.exit_code == errors.EXIT_INTEGRITY
    assert any(path.name in problem["item"] for problem in records(result, "problem"))


def test_a_damaged_snapshot_is_reported_and_the_others_are_listed_and_restored(
    stored: Path, run: Run, source: Path, tmp_path: Path
) -> None:
    (path,) = (stored / "snapshots").iterdir()
    (source / "later").write_text("later")
    assert run("snapshot", source).exit_code == errors.EXIT_DONE
    (good,) = {each.name for each in (stored / "snapshots").iterdir()} - {path.name}
    flip(path)
    listed = run("snapshots")
    assert listed.exit_code == errors.EXIT_INTEGRITY
    assert good[:8] in listed.stdout
    assert path.name in listed.stderr
    result = run("snapshots", "--json")
    assert result.exit_code == errors.EXIT_INTEGRITY
    assert [each["id"] for each in records(result, "snapshot")] == [good]
    (error,) = [json.loads(line) for line in result.stderr.splitlines()]
    assert (error["message_type"], error["item"]) == ("error", f"snapshots/{path.name}")
    refused = run("restore", "latest", "--target", tmp_path / "out")
    assert refused.exit_code == errors.EXIT_INTEGRITY
    assert path.name in refused.stderr
    assert "id" in refused.stderr
    assert not (tmp_path / "out").exists()
    assert run("restore", f"{good[:8]}:{source}", "--target", tmp_path / "out").exit_code == errors.EXIT_DONE
    assert (tmp_path / "out" / "later").read_text() == "later"


def test_a_damaged_snapshot_object_stops_no_backup_and_is_told(stored: Path, run: Run, source: Path) -> None:
    (path,) = (stored / "snapshots").iterdir()
    flip(path)
    (source / "later").write_text("later")
    for command in (["snapshot", source], ["stats"], ["find", "later"]):
        result = run(*command)
        assert result.exit_code == errors.EXIT_INTEGRITY
        assert path.name in result.stderr
    assert "later" in result.stdout
    (good,) = {each.name for each in (stored / "snapshots").iterdir()} - {path.name}
    assert run("ls", f"{good[:8]}:{source}").exit_code == errors.EXIT_DONE


def test_a_damaged_pack_is_traced_to_its_files(stored: Path, run: Run, source: Path, tmp_path: Path) -> None:
    pack = data_pack(stored)
    flip(pack)
    assert run("check").exit_code == errors.EXIT_DONE
    result = run("check", "--read-data", "--json")
    assert result.exit_code == errors.EXIT_INTEGRITY
    problem = next(each for each in records(result, "problem") if each["touched"])
    assert pack.name in problem["item"]
    assert f"{source}/notes.txt" in [touched["path"] for touched in problem["touched"]]
    assert f"touches {source}/notes.txt" in run("check", "--read-data").stdout
    restored = run("restore", "latest", "-t", tmp_path / "out")
    assert restored.exit_code == errors.EXIT_INTEGRITY
    assert run("dump", f"latest:{source}/notes.txt").exit_code == errors.EXIT_INTEGRITY


def test_a_missing_pack_is_found_without_reading_data(stored: Path, run: Run) -> None:
    data_pack(stored).unlink()
    result = run("check")
    assert result.exit_code == errors.EXIT_INTEGRITY
    assert "is missing" in result.stdout


def test_a_full_disk_leaves_what_was_committed(stored: Path, shell: Shell, run: Run, tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(os.urandom(4 << 20))

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    done = shell("snapshot", large, preexec_fn=limit)
    assert done.returncode == errors.EXIT_STORAGE
    assert b"Traceback" not in done.stderr
    assert run("check", "--read-data").exit_code == errors.EXIT_DONE
    assert len(records(run("snapshots", "--json"), "snapshot")) == 1
    assert run("snapshot", large).exit_code == errors.EXIT_DONE


@pytest.mark.parametrize("arguments", [["--engine", "cuda"], ["--kernel", "abacus"]])
def test_an_engine_or_kernel_that_cannot_run_is_an_error(
    repository: Path, run: Run, source: Path, arguments: list[str]
) -> None:
    result = run("snapshot", source, *arguments)
    assert result.exit_code == errors.EXIT_DEVICE
    assert list((repository / "snapshots").iterdir()) == []


def test_the_environment_demands_an_engine_as_well(repository: Path, run: Run, source: Path) -> None:
    assert run("snapshot", source, env={"OHDIFF_ENGINE": "cuda"}).exit_code == errors.EXIT_DEVICE
    assert run("snapshot", source, env={"OHDIFF_KERNEL": "scalar"}).exit_code == errors.EXIT_DONE


def test_a_path_that_vanished_makes_no_snapshot_when_it_was_all(repository: Path, run: Run, tmp_path: Path) -> None:
    result = run("snapshot", tmp_path / "gone")
    assert result.exit_code == errors.EXIT_FAILED
    assert str(tmp_path / "gone") in result.stderr
    assert list((repository / "snapshots").iterdir()) == []


def test_a_path_that_vanished_beside_others_is_reported(
    repository: Path, run: Run, source: Path, tmp_path: Path
) -> None:
    result = run("snapshot", source, tmp_path / "gone", "--json")
    assert result.exit_code == errors.EXIT_PARTIAL
    error = json.loads(result.stderr.splitlines()[0])
    assert error["message_type"] == "error"
    assert error["item"] == str(tmp_path / "gone")
    assert records(result, "summary")[0]["snapshot_id"]


def test_a_vanished_default_source_does_not_make_the_default_repository(run: Run, home: Home, tmp_path: Path) -> None:
    assert run("snapshot", tmp_path / "gone").exit_code == errors.EXIT_FAILED
    assert not home.data.exists()


def test_a_loop_of_links_is_stored_as_links(repository: Path, run: Run, source: Path, tmp_path: Path) -> None:
    (source / "a").symlink_to("b")
    (source / "b").symlink_to("a")
    (source / "up").symlink_to(source)
    assert run("snapshot", source).exit_code == errors.EXIT_DONE
    assert run("snapshot", source / "a").exit_code == errors.EXIT_FAILED
    assert run("restore", f"latest:{source}", "-t", tmp_path / "out").exit_code == errors.EXIT_DONE
    assert (tmp_path / "out" / "up").readlink() == source


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_an_unreadable_file_is_reported_and_the_rest_is_stored(repository: Path, run: Run, source: Path) -> None:
    (source / "notes.txt").chmod(0)
    result = run("snapshot", source)
    assert result.exit_code == errors.EXIT_PARTIAL
    assert "notes.txt" in result.stderr


def test_too_little_memory_names_the_least(repository: Path, run: Run, source: Path) -> None:
    result = run("snapshot", source, "--memory", "10M")
    assert result.exit_code == errors.EXIT_USAGE
    assert "at least" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--exclude-larger-than", "huge"],
        ["--memory", "-1"],
        ["--compression", "20"],
        ["--compression", "zip"],
        ["--time", "yesterday"],
        ["--read-concurrency", "0"],
        ["--parent", "xyz"],
        ["--stdin-filename", "a/b"],
        ["--stdin-filename", "x"],
    ],
)
def test_values_that_make_no_sense(repository: Path, run: Run, source: Path, arguments: list[str]) -> None:
    assert run("snapshot", source, *arguments).exit_code == errors.EXIT_USAGE
    assert list((repository / "snapshots").iterdir()) == []


def test_nothing_to_snapshot(repository: Path, run: Run) -> None:
    assert run("snapshot").exit_code == errors.EXIT_USAGE


def test_a_repository_is_not_made_twice_nor_over_other_files(stored: Path, run: Run, source: Path) -> None:
    before = contents(stored)
    assert run("init", "--no-encryption").exit_code == errors.EXIT_FAILED
    assert contents(stored) == before
    assert run("-r", source, "init", "--no-encryption").exit_code == errors.EXIT_USAGE


@pytest.mark.parametrize("size", ["1K", "64M", "many"])
def test_chunk_sizes_out_of_bounds(run: Run, home: Home, tmp_path: Path, size: str) -> None:
    result = run("-r", tmp_path / "r", "init", "--no-encryption", "--chunk-size", size)
    assert result.exit_code == errors.EXIT_USAGE
    assert not (tmp_path / "r").exists()


def test_a_cache_folder_that_cannot_be_made(stored: Path, run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert run("check", env={"OHDIFF_CACHE_DIR": str(tmp_path / "file" / "cache")}).exit_code == errors.EXIT_FAILED


def test_unexpected_errors_are_one_sentence_unless_debugging(stored: Path, shell: Shell, home: Home) -> None:
    program = (
        "import ohdiff.repository.snapshots as room\n"
        "def broken(*_): raise ZeroDivisionError('for a test')\n"
        "room.read_snapshots = broken\n"
        "from ohdiff.cli.main import main; main()\n"
    )

    def call(**variables: str) -> subprocess.CompletedProcess[bytes]:
        environment = {**os.environ, **variables}
        command = [sys.executable, "-c", program, "snapshots"]
        return subprocess.run(command, env=environment, capture_output=True, check=False)

    plain, debugged = call(), call(OHDIFF_DEBUG="1")
    assert plain.returncode == debugged.returncode == errors.EXIT_FAILED
    assert b"please report" in plain.stderr
    assert b"Traceback" not in plain.stderr
    assert b"Traceback" in debugged.stderr


def test_wrong_progress_rates_are_refused(stored: Path, run: Run) -> None:
    assert run("check", env={"OHDIFF_PROGRESS_FPS": "often"}).exit_code == errors.EXIT_USAGE


def test_objects_stay_read_only(stored: Path) -> None:
    assert all(not path.stat().st_mode & stat.S_IWUSR for path in stored.rglob("*") if path.is_file())
