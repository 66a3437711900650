"""Words for numbers and paths, and numbers out of words. Pure."""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime
from typing import Any, Final

from ohdiff.errors import UsageError

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtpe]?)(?:i?b)?", re.IGNORECASE)
_SECOND_NS: Final = 1_000_000_000
_CONTROL: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {10: "\\n", 9: "\\t"}


def shown(path: bytes) -> str:
    """A path for people: what is not UTF-8, and what a terminal would obey, is escaped."""
    return path.decode(errors="backslashreplace").translate(_CONTROL) or "/"


def path_fields(path: bytes, name: str = "path") -> dict[str, Any]:
    """A path for programs: approximated, and exact in base64 where it is not UTF-8."""
    try:
        return {name: path.decode() or "/"}
    except UnicodeDecodeError:
        return {name: path.decode(errors="replace"), f"{name}_b64": base64.b64encode(path).decode()}


def format_size(size: float) -> str:
    """A size with a binary unit."""
    unit = 0
    while size >= 1024 and unit + 1 < len(_UNITS):
        size /= 1024
        unit += 1
    return f"{size:.0f} B" if unit == 0 else f"{size:.2f} {_UNITS[unit]}"


def parse_size(text: str) -> int:
    """Bytes out of `512`, `64K`, `1.5GiB`; units are binary."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a size", hint="write bytes, or a number with K, M, G or T")
    power = " kmgtpe".index(match[2].lower()) if match[2] else 0
    return int(float(match[1]) * 1024**power)


def format_duration(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def local_time(time_ns: int) -> str:
    """A time in this machine's zone, to the second; the bare number of seconds where no calendar reaches."""
    try:
        return f"{datetime.fromtimestamp(time_ns // _SECOND_NS).astimezone():%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return f"@{time_ns // _SECOND_NS}"


def iso_time(time_ns: int) -> str:
    """A time for programs: RFC 3339 in UTC, with all nanoseconds."""
    seconds, rest = divmod(time_ns, _SECOND_NS)
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"
    except (ValueError, OverflowError, OSError):
        return f"@{seconds}.{rest:09}"


def parse_time(text: str) -> int:
    """Nanoseconds since 1970 out of an ISO date with or without a time and a zone, or `@seconds`."""
    try:
        if text.startswith("@"):
            return int(text[1:]) * _SECOND_NS
        moment = datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(
            f"{text!r} is not a time",
            hint='write it like "2026-11-30 18:45:00", 2026-11-30T18:45:00+01:00, or @seconds',
        ) from error
    return int(moment.timestamp()) * _SECOND_NS + moment.microsecond * 1000


def counted(count: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{count:,} {noun if count == 1 else plural}"
