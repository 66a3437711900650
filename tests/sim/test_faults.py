"""Many faults in a row: killed, stopped and failed at any time, the work comes out right. bench/ does a thousand."""

from __future__ import annotations

from pathlib import Path

from support.emulation import python

# In a process of its own, since it forks.
INJECT = """
import sys
from pathlib import Path
from support.faults import inject
verdict = inject(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
print(verdict, flush=True)
sys.exit(not verdict.is_good or not (verdict.kills and verdict.stops and verdict.device_errors and verdict.pieces))
"""


def test_after_kills_stops_and_device_errors_no_result_is_wrong(tmp_path: Path) -> None:
    with python(INJECT, str(tmp_path), "120", "1") as process:
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
