"""ohdiff devices: what this machine can compute with."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from ohdiff.chunking.cpu import available_kernels

from ..engines import engine_without_repository
from ..environment import processor_count
from ..shared import Output, engine_options, shared

# What the NVIDIA driver shows of itself on Linux; nothing of CUDA has to be loaded to look there.
_DRIVER = Path("/proc/driver/nvidia/version")


@click.command("devices")
@engine_options
@shared()
def devices(output: Output, engine_name: str, kernel: str) -> None:
    """Say which engines and kernels can run here, and which one is taken."""
    choice = engine_without_repository(engine_name, kernel)
    kernels = available_kernels()
    has_cupy = importlib.util.find_spec("cupy") is not None
    has_driver = _DRIVER.exists()
    output.record(
        "device",
        name="cpu",
        processors=processor_count(),
        kernels=kernels,
        kernel=choice.engine.kernel,
        is_usable=True,
        reason=choice.reason,
    )
    output.record("device", name="cuda", has_cupy=has_cupy, has_driver=has_driver, is_usable=False)
    if output.is_json:
        return
    output.line(f"cpu   {processor_count()} processors; kernels, best first: {', '.join(kernels)}")
    output.line(
        f"cuda  {'an' if has_driver else 'no'} NVIDIA driver, cupy {'installed' if has_cupy else 'not installed'}; "
        "not used: this version computes on the CPU only"
    )
    output.line(choice.reason)
