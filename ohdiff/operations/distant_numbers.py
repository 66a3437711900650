"""Pieces of tensors encoded on the device that they lie on: what comes down is decoded, and proved by its id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blake3 import blake3

from ohdiff.chunking.compressor import CompressorChoice
from ohdiff.chunking.device_memory import DeviceMemory
from ohdiff.chunking.engine import Engine
from ohdiff.delta.numbers import simple_forms
from ohdiff.repository.block_decoder import decode
from ohdiff.repository.encoding import Encoded
from ohdiff_format.blocks import CODEC_NUMBERS
from ohdiff_format.errors import FormatError
from ohdiff_format.numbers import CAST_NONE, TRANSFORM_NONE

from .tensor_bases import NumbersPlan

if TYPE_CHECKING:
    from ohdiff.chunking.cuda.planes import PlaneEncoder


def plane_encoder(compressing: CompressorChoice, engine: Engine) -> PlaneEncoder | None:
    """What encodes pieces on an engine's device; None where the CPU does."""
    if compressing.compressor is None or engine.name != "cuda":
        return None
    from ohdiff.chunking.cuda.device import DeviceFaultError
    from ohdiff.chunking.cuda.planes import PlaneEncoder

    try:
        return PlaneEncoder(compressing.compressor)
    except DeviceFaultError as error:
        compressing.note(f"pieces of tensors are encoded by the CPU: {error}")
        return None


class DistantNumbers:
    """See `DistantPlan`.

    Parameters
    ----------
    plan : what the piece may stand on.
    memory : where it lies.
    chunk_id : what was hashed there.
    """

    def __init__(
        self, planes: PlaneEncoder, plan: NumbersPlan, memory: DeviceMemory, chunk_id: bytes, id_key: bytes
    ) -> None:
        self._planes = planes
        self._plan = plan
        self._memory = memory
        self._chunk_id = chunk_id
        self._id_key = id_key

    def encode(self) -> Encoded | None:
        """See `DistantPlan`."""
        plan, size, width = self._plan, self._memory.size, self._plan.kind.width
        data = plan.load_base()
        base = plan.base if data is not None else None
        if base is not None and len(data or b"") != size // width * base.kind.width:
            base, data = None, None
        transforms, cast = simple_forms(plan.kind, None if base is None else base.kind)
        made = self._planes.encode(self._memory, width, transforms, data if len(transforms) > 1 else None, cast)
        if made is None:
            return None
        if made.transform == TRANSFORM_NONE or base is None or data is None:
            parameters = bytes((0, width, TRANSFORM_NONE, CAST_NONE))
            encoded = Encoded(CODEC_NUMBERS, made.payload, size, parameters=parameters)
        else:
            parameters = bytes((base.depth + 1, width, made.transform, cast))
            encoded = Encoded(CODEC_NUMBERS, made.payload, size, base.prefix, parameters, data)
        if self._is_proved(encoded):
            return encoded
        self._planes.distrust()
        return None

    def _is_proved(self, encoded: Encoded) -> bool:
        try:
            plain = decode(encoded, encoded.payload, encoded.base)
        except FormatError:
            return False
        return blake3(plain, key=self._id_key).digest() == self._chunk_id
