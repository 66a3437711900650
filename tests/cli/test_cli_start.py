"""Starting up: help without heavy modules, completion, usage errors, flags before and after the command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

import ohdiff
from ohdiff.cli.group import COMMANDS

Run = Callable[..., Result]
Shell = Callable[..., subprocess.CompletedProcess[bytes]]

HEAVY = ["rich", "cryptography", "blake3", "msgspec", "zstandard", "pathspec", "platformdirs", "ohdiff._kernels"]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["nonsense"]])
def test_help_imports_no_heavy_module(arguments: list[str]) -> None:
    program = (
        "import sys\n"
        "from ohdiff.cli.main import cli\n"
        "code = cli.main(sys.argv[1:], 'ohdiff', standalone_mode=False)\n"
        f"print('loaded:', [name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    assert "loaded: []" in done.stdout


def test_reading_a_snapshot_imports_no_progress_bar_when_piped(stored: Path, shell: Shell) -> None:
    program = (
        "import sys\n"
        "from ohdiff.cli.main import cli\n"
        "cli.main(['ls', 'latest'], 'ohdiff', standalone_mode=False)\n"
        "print('rich' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False\n")


def test_help_lists_every_command_and_each_has_its_own(run: Run) -> None:
    listed = run("--help").stdout
    for name in COMMANDS:
        assert f"\n  {name} " in listed
        assert run(name, "--help").exit_code == 0


@pytest.mark.parametrize("name", ["forget", "prune", "mount", "undelete", "schedule", "export"])
def test_commands_of_later_versions_do_not_exist(run: Run, name: str) -> None:
    assert run(name).exit_code == 2


def test_the_version_is_told(shell: Shell) -> None:
    assert shell("--version").stdout.decode() == f"ohdiff {ohdiff.__version__}\n"


def test_usage_errors_exit_with_2_and_name_the_help(shell: Shell) -> None:
    done = shell("ls")
    assert done.returncode == 2
    assert b"ohdiff ls --help" in done.stderr
    assert b"Traceback" not in done.stderr


def test_usage_errors_are_json_when_json_is_asked_for(shell: Shell) -> None:
    done = shell("ls", "--json")
    error = json.loads(done.stderr.splitlines()[-1])
    assert error["message_type"] == "exit_error"
    assert error["code"] == done.returncode == 2


def test_shared_flags_work_before_and_after_the_command(
    stored: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OHDIFF_REPOSITORY")
    before = run("-r", stored, "--json", "snapshots")
    after = run("snapshots", "-r", stored, "--json")
    assert before.exit_code == after.exit_code == 0
    assert before.stdout == after.stdout


def test_a_flag_wins_over_the_environment(stored: Path, run: Run, tmp_path: Path) -> None:
    assert run("-r", tmp_path / "elsewhere", "snapshots").exit_code == 10
    assert run("snapshots", "-r", tmp_path / "elsewhere").exit_code == 10


def test_a_dry_run_of_a_command_that_has_none_is_refused_before_it_acts(stored: Path, run: Run) -> None:
    result = run("--dry-run", "key", "list")
    assert result.exit_code == 2
    assert "dry run" in result.stderr


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_completion_scripts_are_accepted_by_their_shells(run: Run, shell_name: str, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(run("completion", shell_name).stdout)
    assert "_OHDIFF_COMPLETE" in script.read_text()
    program = shutil.which(shell_name)
    if program is not None:
        subprocess.run([program, "-n", script], check=True)


def test_completion_offers_commands_and_options(shell: Shell) -> None:
    def completed(words: str, count: int) -> str:
        variables = {**os.environ, "_OHDIFF_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(count)}
        # Completion goes by the name of the program.
        program = "from ohdiff.cli.main import main; main()"
        return subprocess.run(
            [sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=False
        ).stdout

    assert completed("ohdiff snap", 1).splitlines() == ["plain,snapshot", "plain,snapshots"]
    assert "plain,--exclude-caches" in completed("ohdiff snapshot --exclude-c", 2)


def test_devices_says_what_can_run_and_what_cannot(run: Run) -> None:
    result = run("devices", "--json")
    cpu, cuda = (json.loads(line) for line in result.stdout.splitlines())
    assert cpu["kernel"] == cpu["kernels"][0]
    assert cuda["is_usable"] is False
    assert "CPU only" in run("devices").stdout
