"""ohdiff calibrate: measure what the accelerator is good for here, and let "auto" decide by that."""

from __future__ import annotations

import click

from ohdiff.chunking.compressor import open_compressor
from ohdiff.chunking.cuda.device import DeviceFaultError
from ohdiff.chunking.cuda.engine import CudaEngine
from ohdiff.chunking.cuda.placement import DeviceProfile, Judgement, judge, judge_compression
from ohdiff.errors import DeviceError
from ohdiff.operations.calibration import SAMPLE_SIZE_BYTES, measure_compression, measure_profile
from ohdiff.repository.chunk_writer import BLOCK_SIZE_BYTES

from ..engines import accelerator, engine_without_repository, store_profile
from ..environment import processor_count
from ..shared import Output, shared
from ..text import format_size, parse_size


@click.command("calibrate")
@click.option("--device-memory", metavar="SIZE", help="Most device memory to use. [env: OHDIFF_DEVICE_MEMORY]")
@click.option("--sample", metavar="SIZE", default=str(SAMPLE_SIZE_BYTES), help="Measure with this much data.")
@shared()
def calibrate(output: Output, device_memory: str | None, sample: str) -> None:
    """Measure the accelerator and the CPU, and keep the result: --engine auto decides by it.

    The measurement takes a few seconds, and is only as good as the machine is idle.
    """
    ceiling = None if device_memory is None else parse_size(device_memory)
    choice = engine_without_repository("cuda", "auto", ceiling)
    assert isinstance(choice.engine, CudaEngine), "a demand is met or an error"
    try:
        profile = measure_profile(choice.engine, processor_count(), parse_size(sample))
        profile, compression = _with_compression(profile, ceiling)
    except DeviceFaultError as error:
        raise DeviceError(f"the device failed while it was measured: {error}", item="cuda") from error
    path = store_profile(profile)
    judgement = judge(profile, threads=processor_count())
    output.summary(
        [
            *_in_words(profile),
            f"files are {'' if judgement.pays else 'not '}cut on the device: {judgement.reason}",
            f"blocks are {'' if compression.pays else 'not '}compressed on the device: {compression.reason}",
        ],
        **profile.as_fields(),
        pays=judgement.pays,
        reason=judgement.reason,
        compression_pays=compression.pays,
        compression_reason=compression.reason,
        path=str(path),
    )


def _with_compression(profile: DeviceProfile, ceiling: int | None) -> tuple[DeviceProfile, Judgement]:
    """The profile with what compression there is worth, where nvCOMP is installed."""
    try:
        compressor, _ = open_compressor(accelerator(ceiling), BLOCK_SIZE_BYTES)
        profile = measure_compression(profile, compressor)
    except DeviceError as error:
        return profile, Judgement(False, error.message)
    return profile, judge_compression(profile)


def _in_words(profile: DeviceProfile) -> list[str]:
    rows = [
        ("copied to the device, pinned", profile.copy_rate),
        ("cut and hashed from pinned memory", profile.pinned_rate),
        ("cut and hashed from ordinary memory", profile.pageable_rate),
        ("cut and hashed on the device", profile.resident_rate),
        ("cut and hashed by the CPU, one thread", profile.cpu_rate),
        (f"cut and hashed by the CPU, {profile.processors} threads", profile.cpu_rate_all),
    ]
    if profile.compress_rate:
        rows.append(("compressed on the device", profile.compress_rate))
        rows.append((f"compressed by the CPU, {profile.processors} threads", profile.cpu_compress_rate))
    return [f"{profile.device}, {profile.architecture}"] + [
        f"{what + ':':<44} {format_size(int(rate))}/s" for what, rate in rows
    ]
