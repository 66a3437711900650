"""Freezes the golden repositories: run by hand, when a change of the format's bytes is meant, and review the diff.

python tests/golden/regenerate_format.py
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import delta_repository
import zstandard
from format_repository import ENCRYPTIONS, KEY_FILE, MASTER_KEY, PASSWORD, build_repository, single_values

FOLDER = Path(__file__).parent / "format"


def main() -> None:
    """Write one file for each encryption, one of deltas and numbers, and one of single values."""
    (FOLDER / "vectors.json").write_text(json.dumps(single_values(), indent=1) + "\n")
    for encryption in ENCRYPTIONS:
        freeze(encryption, encryption, build_repository(encryption))
    freeze("deltas", delta_repository.ENCRYPTION, delta_repository.build_delta_repository())


def freeze(name: str, encryption: str, objects: dict[str, bytes]) -> None:
    """Write the objects of one repository."""
    frozen = {
        "encryption": encryption,
        "zstd_version": list(zstandard.ZSTD_VERSION),
        "master_key": MASTER_KEY.hex(),
        "password": PASSWORD,
        "key_file": KEY_FILE.hex(),
        "objects": {name: base64.b64encode(data).decode() for name, data in objects.items()},
    }
    (FOLDER / f"{name}.json").write_text(json.dumps(frozen, indent=1) + "\n")


if __name__ == "__main__":
    main()
