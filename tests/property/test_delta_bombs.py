"""Deltas and numbers that claim more than they hold are refused without allocating it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="the address space can only be capped on Linux")
def test_bombs_of_deltas_and_numbers_are_refused_without_allocating_what_they_claim() -> None:
    """In a process of its own; a hang there fails here."""
    command = [sys.executable, str(Path(__file__).with_name("delta_bombs.py"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) > 100
