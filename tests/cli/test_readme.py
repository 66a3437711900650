"""README's commands work as written, in order, for somebody who has just installed the program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def blocks() -> list[str]:
    """The shell blocks that a user would type."""
    return re.findall(r"```sh\n(.*?)```", README.read_text(), re.DOTALL)


def test_the_commands_of_the_readme_work_in_order(tmp_path: Path) -> None:
    home = tmp_path / "home"
    project = home / "project"
    (project / "empty").mkdir(parents=True)
    (project / "notes.txt").write_text("some notes\n")
    (project / "program.py").write_text("print('hello')\n")
    (home / "password.txt").write_text("correct horse\n")
    # A stand-in for the installed script, so that the sources under test run and nothing else.
    scripts = tmp_path / "bin"
    scripts.mkdir()
    (scripts / "ohdiff").write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m ohdiff "$@"\n')
    (scripts / "ohdiff").chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OHDIFF_", "XDG_"))}
    environment = kept | {"HOME": str(home), "PATH": f"{scripts}:{os.environ['PATH']}"}
    assert len(blocks()) >= 3
    done = subprocess.run(
        ["sh", "-eux", "-c", "\n".join(blocks())],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (home / "restored" / "program.py").read_text() == "print('hello')\n"
    assert (home / "notes.txt").read_text() == "some notes\nchanged\n"
    assert "added" in done.stdout or "new" in done.stdout


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) < 200
