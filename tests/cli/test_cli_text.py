"""Words for numbers and paths, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ohdiff.cli import text
from ohdiff.cli.commands.check import parse_part
from ohdiff.cli.selection import clean_path, split_selector
from ohdiff.errors import UsageError


@pytest.mark.parametrize(
    ("words", "size"), [("0", 0), ("512", 512), ("4k", 4096), ("1.5 MiB", 3 << 19), ("2G", 2 << 30), ("1TB", 1 << 40)]
)
def test_sizes_are_read(words: str, size: int) -> None:
    assert text.parse_size(words) == size


@pytest.mark.parametrize("words", ["", "K", "-1", "1X", "1,5M", "many"])
def test_other_words_are_no_sizes(words: str) -> None:
    with pytest.raises(UsageError):
        text.parse_size(words)


@given(st.binary())
def test_a_shown_path_cannot_command_a_terminal_and_fits_on_a_line(path: bytes) -> None:
    shown = text.shown(path)
    assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in shown)
    shown.encode()


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_time_can_be_shown(time_ns: int) -> None:
    assert text.local_time(time_ns)
    assert text.iso_time(time_ns)


@given(st.integers(-(2**40), 2**40))
def test_a_time_in_seconds_is_read_exactly(seconds: int) -> None:
    assert text.parse_time(f"@{seconds}") == seconds * 1_000_000_000


def test_a_time_with_a_zone_is_that_moment() -> None:
    assert text.parse_time("1970-01-01T01:00:00.5+01:00") == 500_000_000
    assert text.iso_time(-1) == "1969-12-31T23:59:59.999999999Z"


@pytest.mark.parametrize(
    ("selector", "parts"),
    [
        ("latest", ("latest", b"")),
        ("latest:/", ("latest", b"")),
        ("ab12:/x//y/./z/", ("ab12", b"/x/y/z")),
        ("latest~2:x:y", ("latest~2", b"/x:y")),
    ],
)
def test_selectors_are_split_into_snapshot_and_path(selector: str, parts: tuple[str, bytes]) -> None:
    assert split_selector(selector) == parts


@given(st.binary())
def test_cleaning_a_path_twice_changes_nothing_more(path: bytes) -> None:
    clean = clean_path(path)
    assert clean_path(clean) == clean
    assert clean == b"" or clean.startswith(b"/")


@given(st.integers(0, 2**30), st.floats(0.01, 100))
def test_a_percentage_is_never_less_than_was_asked_for(draw: int, percentage: float) -> None:
    part = parse_part(f"{percentage:.4f}%", draw)
    assert 1 <= part.number <= part.count
    assert 100 / part.count >= float(f"{percentage:.4f}") - 1e-9
