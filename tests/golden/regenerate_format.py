"""Freezes the golden repositories: run by hand, when a change of the format's bytes is meant, and review the diff.

python tests/golden/regenerate_format.py
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import zstandard
from format_repository import ENCRYPTIONS, KEY_FILE, MASTER_KEY, PASSWORD, build_repository, single_values

FOLDER = Path(__file__).parent / "format"


def main() -> None:
    """Write one file for each encryption, and one of single values."""
    (FOLDER / "vectors.json").write_text(json.dumps(single_values(), indent=1) + "\n")
    for encryption in ENCRYPTIONS:
        objects = build_repository(encryption)
        frozen = {
            "encryption": encryption,
            "zstd_version": list(zstandard.ZSTD_VERSION),
            "master_key": MASTER_KEY.hex(),
            "password": PASSWORD,
            "key_file": KEY_FILE.hex(),
            "objects": {name: base64.b64encode(data).decode() for name, data in objects.items()},
        }
        (FOLDER / f"{encryption}.json").write_text(json.dumps(frozen, indent=1) + "\n")


if __name__ == "__main__":
    main()
