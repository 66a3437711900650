"""The main job by command line: snapshot, look, compare, restore."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from conftest import Home, records

Run = Callable[..., Result]
Shell = Callable[..., subprocess.CompletedProcess[bytes]]


def same_trees(left: Path, right: Path) -> bool:
    """Whether two folders hold the same names and data."""
    compared = subprocess.run(["diff", "-r", "--no-dereference", left, right], capture_output=True, check=False)
    return compared.returncode == 0


def test_the_first_snapshot_makes_an_encrypted_default_repository_and_says_where_the_key_is(
    run: Run, home: Home, source: Path, tmp_path: Path
) -> None:
    result = run("snapshot", source)
    assert result.exit_code == 0
    assert str(home.key_file) in result.stderr
    assert "ohdiff key export" in result.stderr
    assert stat.S_IMODE(home.key_file.stat().st_mode) == 0o600
    assert b'"master_key":""' in (home.data / "config").read_bytes()
    assert run("restore", f"latest:{source}", "--target", tmp_path / "out").exit_code == 0
    assert same_trees(source, tmp_path / "out")


def test_the_default_repository_does_not_open_without_its_key(run: Run, home: Home, source: Path) -> None:
    run("snapshot", source)
    home.key_file.unlink()
    assert run("snapshots").exit_code == 12


def test_a_key_file_that_is_there_is_used_for_the_default_repository_and_never_replaced(
    run: Run, home: Home, source: Path, tmp_path: Path
) -> None:
    run("snapshot", source)
    key = home.key_file.read_bytes()
    home.data.rename(tmp_path / "lost")
    assert run("snapshot", source).exit_code == 0
    assert home.key_file.read_bytes() == key


@pytest.mark.parametrize("arguments", [["snapshots"], ["ls", "latest"], ["snapshot", "--dry-run", "."]])
def test_only_a_real_snapshot_makes_the_default_repository(run: Run, home: Home, arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 10
    assert not home.data.exists()


def test_a_snapshot_of_the_home_leaves_out_the_repository_in_it(run: Run, home: Home) -> None:
    (home.path / "file").write_text("mine")
    for _ in range(2):
        assert run("snapshot", home.path).exit_code == 0
    listed = run("ls", "-R", "latest").stdout
    assert str(home.path / "file") in listed
    assert "packs" not in listed
    assert "segment-" not in listed


def test_an_unchanged_folder_is_not_read_again(stored: Path, run: Run, source: Path) -> None:
    run("snapshot", source)
    (summary,) = records(run("backup", source, "--json"), "summary")
    assert summary["files_unmodified"] == summary["total_files_processed"]
    assert summary["bytes_read"] == 0
    # The folders above it may have changed: others work in them.
    assert summary["data_added"] < 10_000
    (forced,) = records(run("snapshot", source, "--json", "--force"), "summary")
    assert forced["bytes_read"] > 0


def test_skip_if_unchanged_makes_no_snapshot(stored: Path, run: Run, source: Path) -> None:
    assert run("snapshot", source, "--skip-if-unchanged").exit_code == 0
    assert len(records(run("snapshots", "--json"), "snapshot")) == 1


def test_a_dry_run_stores_nothing(repository: Path, run: Run, source: Path) -> None:
    before = sorted(repository.rglob("*"))
    (summary,) = records(run("snapshot", source, "-n", "--json"), "summary")
    assert summary["data_added"] > 0
    assert summary["snapshot_id"] is None
    assert sorted(repository.rglob("*")) == before


def test_excludes_of_every_kind_leave_out_what_they_say(
    repository: Path, run: Run, source: Path, tmp_path: Path
) -> None:
    (source / "cache").mkdir()
    (source / "cache" / "CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55\n")
    (source / "cache" / "junk").touch()
    (source / "marked").mkdir()
    (source / "marked" / ".nobackup").touch()
    (source / "marked" / "junk").touch()
    (source / ".ignore").write_text("ignored\n")
    (source / "ignored").touch()
    (source / "a.tmp").touch()
    (source / "b.log").touch()
    patterns = tmp_path / "patterns"
    patterns.write_text("# a comment\n*.log\n")
    result = run(
        "snapshot", source, "-e", "*.tmp", "--exclude-file", patterns, "--exclude-caches", "--exclude-if-present",
        ".nobackup", "--ignore-files", ".ignore", "--exclude-larger-than", "100K",
    )  # fmt: skip
    assert result.exit_code == 0
    listed = run("ls", "-R", f"latest:{source}").stdout
    for name in ("junk", "ignored\n", "a.tmp", "b.log", "data.bin"):
        assert name not in listed
    for name in ("CACHEDIR.TAG", ".nobackup", "notes.txt"):
        assert name in listed


def test_snapshots_are_filtered_by_host_tag_and_path(stored: Path, run: Run, source: Path) -> None:
    run("snapshot", source / "sub", "--host", "other", "--tag", "a,b", "--time", "2001-02-03T04:05:06+00:00")
    (found,) = records(run("snapshots", "--json", "--host", "other"), "snapshot")
    assert found["tags"] == ["a", "b"]
    assert found["time"] == "2001-02-03T04:05:06.000000000Z"
    assert len(records(run("snapshots", "--json", "--tag", "first"), "snapshot")) == 1
    assert len(records(run("snapshots", "--json", "--path", source), "snapshot")) == 1
    assert run("ls", "latest", "--tag", "nowhere").exit_code == 13


def test_ls_lists_one_level_or_all(stored: Path, run: Run, source: Path) -> None:
    assert run("ls", f"latest:{source}/sub").stdout.split() == [
        f"{source}/sub/data.bin",
        f"{source}/sub/deep",
        f"{source}/sub/same.txt",
    ]
    assert f"{source}/sub/deep/nothing" in run("ls", "-R", "latest").stdout
    assert "-> notes.txt" in run("ls", "--long", f"latest:{source}/link").stdout


def test_find_looks_into_all_snapshots(stored: Path, run: Run, source: Path) -> None:
    run("snapshot", source)
    assert len(records(run("find", "*.TXT", "-i", "--json"), "match")) == 4
    assert len(records(run("find", f"{source}/sub/*", "--snapshot", "latest", "--json"), "match")) == 4
    assert "0 matches" in run("find", "*.TXT").stdout


def test_cat_shows_files_and_objects(stored: Path, run: Run, source: Path) -> None:
    assert (
        run("cat", "file", f"latest:{source}/notes.txt", f"latest:{source}/notes.txt").stdout == "one\ntwo\nthree\n" * 2
    )
    assert '"format": "ohdiff repository"' in run("cat", "config").stdout
    assert str(source) in run("cat", "snapshot", "latest").stdout
    (index,) = (stored / "index").iterdir()
    assert '"blocks"' in run("cat", "index", index.name[:10]).stdout
    assert run("cat", "key", "ab").exit_code == 13
    assert run("cat", "file", "latest").exit_code == 2
    assert run("cat", "snapshot").exit_code == 2


def test_dump_writes_a_file_as_it_is(stored: Path, shell: Shell, source: Path) -> None:
    assert shell("dump", f"latest:{source}/sub/data.bin").stdout == (source / "sub" / "data.bin").read_bytes()


def test_dump_writes_a_folder_as_a_tar_that_holds_everything(stored: Path, shell: Shell, source: Path) -> None:
    done = shell("dump", f"latest:{source}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout), errors="surrogateescape") as archive:
        members = {member.name: member for member in archive}
        notes = archive.extractfile("notes.txt")
        assert notes is not None
        assert notes.read() == b"one\ntwo\nthree\n"
    assert {os.fsencode(name) for name in members} >= {b"odd\xff", b"empty", b"sub/deep/nothing"}
    assert members["link"].linkname == "notes.txt"
    assert members["sub/same.txt"].islnk()
    assert members["empty"].isdir()


def test_restore_needs_a_target_and_takes_a_path(stored: Path, run: Run, source: Path, tmp_path: Path) -> None:
    assert run("restore", "latest").exit_code == 2
    assert run("restore", f"latest:{source}/notes.txt", "-t", tmp_path / "one").exit_code == 0
    assert (tmp_path / "one" / "notes.txt").read_text() == "one\ntwo\nthree\n"
    assert run("restore", "latest:/not/there", "-t", tmp_path / "two").exit_code == 13


def test_restore_in_place_rewrites_what_differs_and_deletes_on_demand(stored: Path, run: Run, source: Path) -> None:
    (source / "sub" / "data.bin").write_bytes(b"damaged")
    (source / "new").touch()
    arguments = ("restore", f"latest:{source}", "-t", source, "--delete")
    (plan,) = records(run(*arguments, "--dry-run", "--json"), "summary")
    assert plan["files"]["deleted"] == 1
    assert (source / "new").exists()
    assert run(*arguments, "--verify").exit_code == 0
    assert not (source / "new").exists()
    assert (source / "sub" / "data.bin").stat().st_size == 256_000


def test_restore_can_be_limited_by_patterns(stored: Path, run: Run, tmp_path: Path) -> None:
    assert run("restore", "latest", "-t", tmp_path / "out", "--include", "*.txt", "--exclude", "same*").exit_code == 0
    assert [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()] == ["notes.txt"]


def test_deleting_in_the_home_folder_needs_a_yes(stored: Path, run: Run, home: Home, source: Path) -> None:
    (home.path / "precious").touch()
    arguments = ("restore", f"latest:{source}", "-t", home.path, "--delete")
    refused = run(*arguments)
    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    assert (home.path / "precious").exists()
    assert run(*arguments, "--yes").exit_code == 0
    assert not (home.path / "precious").exists()


def test_diff_of_two_snapshots_names_each_change(stored: Path, run: Run, source: Path) -> None:
    (source / "notes.txt").write_text("one\n2\nthree\n")
    (source / "added").mkdir()
    (source / "empty").rmdir()
    (source / "link").unlink()
    (source / "link").mkdir()
    (source / "sub" / "data.bin").rename(source / "moved.bin")
    run("snapshot", source)
    text = run("diff", "latest~1", "latest").stdout
    for line in (
        f"+    {source}/added/",
        f"-    {source}/empty/",
        f"M    {source}/notes.txt",
        f"T    {source}/link/",
        f"R    {source}/moved.bin  (from {source}/sub/data.bin)",
    ):
        assert line in text
    assert "U " in run("diff", "latest~1", "latest", "--metadata").stdout
    content = run("diff", "latest~1", "latest", "--content").stdout
    assert "-two\n+2\n" in content
    assert "+    " not in run("diff", "latest~1", "latest", "--stat").stdout
    below = records(run("diff", "latest~1", "latest", f"{source}/sub", "--json"), "change")
    assert [change["modifier"] for change in below] == ["-", "M"]


def test_diff_exits_with_1_for_differences_only_when_asked(stored: Path, run: Run, source: Path) -> None:
    run("snapshot", source)
    assert run("diff", "latest~1", "latest", "--exit-code").exit_code == 0
    (source / "new").touch()
    assert run("diff", "latest", source).exit_code == 0
    assert run("diff", "latest", source, "--exit-code").exit_code == 1


def test_diff_of_a_snapshot_with_the_folder_that_it_holds_compares_that_part(
    stored: Path, run: Run, source: Path
) -> None:
    assert "0 differences" in run("diff", "latest", source).stdout
    (source / "new").touch()
    for arguments in (("latest", source), ("latest", f"dir:{source}"), (f"latest:{source}", source)):
        assert f"+    {source}/new\n" in run("diff", *arguments).stdout
    assert f"-    {source}/new\n" in run("diff", source, "latest").stdout


def test_diff_of_one_file_tells_of_nothing_else(stored: Path, run: Run, source: Path, tmp_path: Path) -> None:
    subprocess.run(["cp", "-a", source, tmp_path / "copy"], check=True)
    for name in ("notes.txt", "notes", "notes.txt.old"):
        (source / name).write_text("one\n2\nthree\n")
    run("snapshot", source)
    line = f"M    {source}/notes.txt\n"
    for arguments in (
        ("latest~1", "latest", source / "notes.txt"),
        (f"latest~1:{source}", f"latest:{source}", "notes.txt"),
        (f"latest~1:{source}/notes.txt", f"latest:{source}/notes.txt"),
        ("latest~1", source, "notes.txt"),
        (f"latest~1:{source}/notes.txt", source / "notes.txt"),
    ):
        result = run("diff", *arguments, "--content")
        assert result.exit_code == 0
        assert result.stdout.startswith(line)
        assert "-two\n+2\n" in result.stdout
        assert "1 difference: 1 modified" in result.stdout
    assert "M    /notes.txt\n" in run("diff", tmp_path / "copy", source, "notes.txt").stdout
    assert "0 differences" in run("diff", "latest", source, "notes.txt").stdout
    assert "1 difference: 1 added" in run("diff", "latest~1", "latest", source / "notes").stdout
    assert "1 difference: 1 removed" in run("diff", "latest", "latest~1", source / "notes").stdout


def test_diff_of_a_path_that_is_a_file_on_one_side_tells_what_became_of_it(
    stored: Path, run: Run, source: Path
) -> None:
    (source / "notes.txt").unlink()
    (source / "notes.txt").mkdir()
    (source / "notes.txt" / "inside").write_text("x")
    text = run("diff", "latest", source, "notes.txt").stdout
    assert text.startswith(f"T    {source}/notes.txt/\n+    {source}/notes.txt/inside\n2 differences")
    for arguments in (("latest", source, "nowhere"), ("latest", "latest", source / "nowhere")):
        result = run("diff", *arguments)
        assert result.exit_code in (2, 13)
        assert "nowhere" in result.stderr


def test_diff_of_two_folders_needs_no_repository(run: Run, home: Home, source: Path, tmp_path: Path) -> None:
    subprocess.run(["cp", "-a", source, tmp_path / "copy"], check=True)
    assert "0 differences" in run("diff", source, tmp_path / "copy").stdout
    (tmp_path / "copy" / "sub" / "data.bin").write_bytes(b"\0" * 256_000)
    result = run("diff", source, f"dir:{tmp_path / 'copy'}", "--content")
    assert "M    /sub/data.bin" in result.stdout
    assert "bytes 0 to 256,000 are new" in result.stdout
    assert not home.data.exists()


def test_diff_explains_a_folder_name_that_reads_like_a_snapshot(
    stored: Path, run: Run, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(source.parent)
    result = run("diff", "latest", source.name)
    assert result.exit_code == 2
    assert f"./{source.name}" in result.stderr


def test_standard_input_becomes_a_file(repository: Path, shell: Shell) -> None:
    data = os.urandom(3_000_000)
    assert shell("snapshot", "--stdin-filename", "blob", input=data).returncode == 0
    assert shell("dump", "latest:/blob").stdout == data


def test_the_output_of_a_command_becomes_a_file_if_it_succeeds(repository: Path, shell: Shell) -> None:
    done = shell("snapshot", "--stdin-filename", "out", "--command", "--", "sh", "-c", "printf all; exit 0")
    assert done.returncode == 0
    assert shell("dump", "latest:/out").stdout == b"all"
    failed = shell("snapshot", "--stdin-filename", "out", "--command", "--", "sh", "-c", "printf half; exit 7")
    assert failed.returncode == 1
    assert b"ended with 7" in failed.stderr
    assert len(list((repository / "snapshots").iterdir())) == 1
    assert shell("snapshot", "--command", "--", "/no/such/program").returncode == 1


def test_check_and_stats_count_what_is_there(stored: Path, run: Run, source: Path) -> None:
    (source / "zeros").write_bytes(bytes(1_000_000))
    run("snapshot", source)
    (checked,) = records(run("check", "--read-data", "--json"))
    assert checked["num_errors"] == 0
    assert checked["read_packs"] == checked["packs"] > 0
    parts = [records(run("check", f"--read-data={part}/2", "--json"))[0]["read_packs"] for part in (1, 2)]
    assert sum(parts) == checked["packs"]
    (sizes,) = records(run("stats", "--json"))
    assert sizes["snapshots"] == 2
    assert sizes["compression_ratio"] > 1
    assert sizes["dedup_ratio"] > 1
    assert "size to restore" in run("stats", "latest").stdout


@pytest.mark.parametrize("part", ["0/2", "3/2", "0%", "101%", "some"])
def test_a_part_that_makes_no_sense_is_refused(stored: Path, run: Run, part: str) -> None:
    assert run("check", f"--read-data={part}").exit_code == 2
