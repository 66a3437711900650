"""How strongly to compress, and where, in the user's words."""

from __future__ import annotations

from typing import Any, Final

import click

from ohdiff.chunking.compressor import COMPRESSOR_NAMES

LEVELS: Final[dict[str, int | None]] = {"none": None, "fast": 1, "default": 3, "max": 19}
_LEVEL_MAX: Final = 19


def _level(_: click.Context, __: click.Parameter, text: str) -> tuple[int | None]:
    """The zstd level as a 1-tuple: click takes a bare None for an option that was not given."""
    if text in LEVELS:
        return (LEVELS[text],)
    if text.isdecimal() and 1 <= int(text) <= _LEVEL_MAX:
        return (int(text),)
    raise click.BadParameter(f"{text!r} is no compression: use none, 1 to {_LEVEL_MAX}, fast, default or max")


def compression_options(function: Any) -> Any:
    """Add --compression and --compress-on."""
    function = click.option(
        "--compress-on",
        type=click.Choice(COMPRESSOR_NAMES),
        envvar="OHDIFF_COMPRESS_ON",
        show_envvar=True,
        default="auto",
        show_default=True,
        help="Where: on the CPU, or on a CUDA device by nvCOMP, which knows no levels.",
    )(function)
    return click.option(
        "--compression",
        callback=_level,
        envvar="OHDIFF_COMPRESSION",
        show_envvar=True,
        default="default",
        show_default=True,
        metavar="LEVEL",
        help="none, 1 to 19, fast, default or max.",
    )(function)
