"""Coverage-guided fuzzing of every decoder with atheris: run by hand, not collected by pytest.

    pip install atheris && python tests/property/fuzz_decoders_atheris.py -max_total_time=120 [libFuzzer options]

The first byte of an input picks the decoder, and whether the rest is wrapped into a compressed body. Any error but a
refusal ends the run with the input that caused it. The samples of the golden repositories are the first inputs.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["ohdiff_format", "format_decoders", "ohdiff_reader"]):
    from format_decoders import DECODERS, unwrapped

import msgspec

WRAPPED = 0x80


def test_one_input(data: bytes) -> None:
    """Feed one decoder."""
    if not data:
        return
    decoder = DECODERS[(data[0] & ~WRAPPED) % len(DECODERS)]
    payload = data[1:]
    decoder.accepts(decoder.wrap(payload) if data[0] & WRAPPED and decoder.wrap else payload)


def write_samples(folder: Path) -> None:
    """The first inputs, bare and with their body unpacked."""
    for number, decoder in enumerate(DECODERS):
        for index, sample in enumerate(decoder.samples):
            (folder / f"{number}-{index}").write_bytes(bytes([number]) + sample)
            if decoder.wrap:
                inner = msgspec.msgpack.encode(unwrapped(decoder, sample))
                (folder / f"{number}-{index}-wrapped").write_bytes(bytes([number | WRAPPED]) + inner)


def main() -> None:
    """Fuzz until an option of libFuzzer or a finding ends it."""
    with tempfile.TemporaryDirectory() as folder:
        write_samples(Path(folder))
        atheris.Setup([*sys.argv, folder], test_one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
