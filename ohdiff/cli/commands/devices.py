"""ohdiff devices: what this machine can compute with, and who else does."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

import click

from ohdiff.chunking.cpu import available_kernels
from ohdiff.chunking.cuda.device import DeviceDescription, has_driver, list_devices, version_text
from ohdiff.chunking.cuda.extras import Extra, find_extras
from ohdiff.chunking.cuda.monitor import DeviceUse, use_of
from ohdiff.errors import DeviceError

from ..device_sharing import find_mps
from ..engines import engine_without_repository, tame_cufile
from ..environment import processor_count
from ..shared import Output, engine_options, shared
from ..text import format_size


@click.command("devices")
@engine_options
@shared()
def devices(output: Output, engine_name: str, kernel: str) -> None:
    """Say which engines and kernels can run here, who uses the accelerators, and which engine is taken."""
    choice = engine_without_repository(engine_name, kernel)
    kernels = available_kernels()
    output.record(
        "device",
        name="cpu",
        processors=processor_count(),
        kernels=kernels,
        kernel=choice.engine.kernel if choice.engine.name == "cpu" else kernels[0],
        is_usable=True,
        reason=choice.reason,
    )
    output.line(f"cpu   {processor_count()} processors; kernels, best first: {', '.join(kernels)}")
    try:
        found = list_devices()
    except DeviceError as error:
        _say_none(output, error)
    else:
        tame_cufile()
        extras = find_extras()
        for described in found:
            _say_device(output, described, use_of(described.bus_id), extras)
    output.line(choice.reason)


def _say_none(output: Output, error: DeviceError) -> None:
    has_cupy = importlib.util.find_spec("cupy") is not None
    output.record(
        "device",
        name="cuda",
        has_cupy=has_cupy,
        has_driver=has_driver(),
        is_usable=False,
        reason=error.message,
        hint=error.hint,
    )
    output.line(
        f"cuda  {'an' if has_driver() else 'no'} NVIDIA driver, cupy {'installed' if has_cupy else 'not installed'}; "
        f"not used: {error.message}. This machine computes on the CPU only"
    )


def _say_device(output: Output, described: DeviceDescription, use: DeviceUse | None, extras: Sequence[Extra]) -> None:
    users = () if use is None else use.users
    mps = find_mps()
    output.record(
        "device",
        name="cuda",
        has_cupy=True,
        has_driver=True,
        is_usable=True,
        ordinal=described.ordinal,
        model=described.name,
        bus_id=described.bus_id,
        shared_name=described.shared_name,
        mps_daemon=None if mps is None else mps.process_id,
        architecture=described.architecture,
        memory_total=described.memory_total,
        memory_free=described.memory_free,
        driver_version=version_text(described.driver_version),
        runtime_version=version_text(described.runtime_version),
        extras={extra.name.lower(): {"is_usable": extra.is_usable, "state": extra.state} for extra in extras},
        busy_percent=None if use is None else use.busy_percent,
        users=None
        if use is None
        else [{"pid": user.process_id, "name": user.name, "memory": user.memory_bytes} for user in users],
    )
    output.line(
        f"cuda  {described.ordinal}: {described.name}, {described.architecture}; "
        f"{format_size(described.memory_free)} of {format_size(described.memory_total)} free; "
        f"the driver is for CUDA {version_text(described.driver_version)}, "
        f"CuPy for {version_text(described.runtime_version)}"
    )
    for extra, purpose in zip(extras, ("compresses blocks", "reads files past the CPU"), strict=True):
        state = f"{extra.state}, {purpose}" if extra.is_usable else f"not used: {extra.state}"
        output.line(f"      {extra.name} {state}")
    output.line(f"      {described.shared_name}: the name for device_hint")
    if mps is not None:
        output.line(f"      shared by an MPS daemon, process {mps.process_id}: snapshots are clients that come second")
    if use is None:
        output.line("      who uses it is not known: pip install nvidia-ml-py")
        return
    output.line(f"      busy {use.busy_percent} % of the time; {'used by' if users else 'nobody uses it'}")
    for user in users:
        memory = "unknown memory" if user.memory_bytes is None else format_size(user.memory_bytes)
        output.line(f"      {user.process_id:>8}  {memory:>12}  {user.name}")
