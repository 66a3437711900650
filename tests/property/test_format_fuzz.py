"""Random and mutated bytes give a refusal or a value, and nothing else: no other error, hang, or unasked allocation."""

from __future__ import annotations

import copy
import stat
import subprocess
import sys
from pathlib import Path

import format_decoders
import msgspec
import pytest
from format_decoders import DECODERS, Decoder, reader
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ohdiff_format import tree
from ohdiff_format.errors import FormatError

FUZZING = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
by_decoder = pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)


@by_decoder
def test_the_samples_are_accepted(decoder: Decoder) -> None:
    assert decoder.samples
    assert all(decoder.accepts(sample) for sample in decoder.samples)


@by_decoder
@FUZZING
@given(data=st.binary(max_size=600))
@example(data=b"")
@example(data=b"\xdd\xff\xff\xff\xff")
def test_random_bytes_are_refused_or_decoded(decoder: Decoder, data: bytes) -> None:
    decoder.accepts(data)
    if decoder.wrap is not None:
        decoder.accepts(decoder.wrap(data))


@st.composite
def mutated(draw: st.DrawFn, samples: list[bytes]) -> bytes:
    """A sample with bits flipped, cut off, repeated, or spliced with another."""
    data = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        change = draw(st.sampled_from(["flip", "set", "cut", "insert", "repeat", "splice"]))
        if change == "flip" and at < len(data):
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif change == "set" and at < len(data):
            data[at] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0x90, 0xC0, 0xC6, 0xCF, 0xD3, 0xDD, 0xDF, 0xFF]))
        elif change == "cut":
            del data[at:]
        elif change == "insert":
            data[at:at] = draw(st.binary(max_size=9))
        elif change == "repeat":
            data[at:at] = data[max(0, at - draw(st.integers(1, 40))) : at]
        else:
            other = draw(st.sampled_from(samples))
            data[at:] = other[draw(st.integers(0, len(other))) :]
    return bytes(data)


@by_decoder
@FUZZING
@given(data=st.data())
def test_mutated_samples_are_refused_or_decoded(decoder: Decoder, data: st.DataObject) -> None:
    decoder.accepts(data.draw(mutated(decoder.samples)))


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.sampled_from([-1, 2**31, 2**32, 2**63, 2**64 - 1, -(2**63)]),
        st.floats(),
        st.binary(max_size=40),
        st.text(max_size=8),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.integers(-1, 5), inner, max_size=3)),
    max_leaves=8,
)


@st.composite
def restructured(draw: st.DrawFn, decoder: Decoder) -> bytes:
    """A sample whose MessagePack value has some part replaced by any other value."""
    assert decoder.wrap is not None
    root = [copy.deepcopy(format_decoders.unwrapped(decoder, draw(st.sampled_from(decoder.samples))))]
    owner: object = root
    key: object = 0
    for _ in range(draw(st.integers(0, 4))):
        inner = owner[key]  # type: ignore[index]
        if not isinstance(inner, list | dict) or not inner:
            break
        owner, key = (
            inner,
            draw(st.sampled_from(sorted(inner, key=repr) if isinstance(inner, dict) else range(len(inner)))),
        )
    owner[key] = draw(VALUES)  # type: ignore[index]
    return decoder.wrap(msgspec.msgpack.encode(root[0]))


@pytest.mark.parametrize(
    "decoder", [decoder for decoder in DECODERS if decoder.wrap is not None], ids=lambda decoder: decoder.name
)
@FUZZING
@given(data=st.data())
def test_samples_with_a_value_replaced_are_refused_or_decoded(decoder: Decoder, data: st.DataObject) -> None:
    decoder.accepts(data.draw(restructured(decoder)))


LEAVES = next(decoder for decoder in DECODERS if decoder.name == "leaf")


@settings(FUZZING, max_examples=400)
@given(data=st.one_of(mutated(LEAVES.samples), restructured(LEAVES)))
def test_the_contents_of_a_leaf_are_the_same_without_its_entries(data: bytes) -> None:
    try:
        listing = tree.decode_listing(data)
    except FormatError:
        return
    rows = list(zip(listing.modes, listing.contents, strict=True))
    files = [content for mode, content in rows if not stat.S_ISDIR(mode)]
    found = tree.decode_leaf_contents(data)
    assert found.file_ids == b"".join(content.ids for content in files if content.depth == 0)
    assert found.deep_files == [content for content in files if content.depth]
    assert [content for content in found.directories if content.ids] == [
        content for mode, content in rows if stat.S_ISDIR(mode) and content.ids
    ]


@settings(FUZZING, max_examples=400)
@given(data=st.one_of(mutated(LEAVES.samples), restructured(LEAVES)))
def test_a_leaf_that_the_codec_accepts_means_the_same_to_the_reader(data: bytes) -> None:
    try:
        listing = tree.decode_listing(data)
    except FormatError:
        return
    try:
        entries = reader.parse_leaf(data)
    except reader.DamageError as error:
        # The reader judges whole entries; the codec leaves types and their targets to whoever restores.
        assert "symlink without a target" in str(error)
        return
    for row, entry in enumerate(entries):
        assert (entry.mode, entry.uid, entry.gid) == (listing.modes[row], listing.uids[row], listing.gids[row])
        assert (entry.name, entry.size, entry.rdev) == (listing.names[row], listing.sizes[row], listing.rdevs[row])
        assert (entry.mtime_ns, entry.inode) == (listing.mtimes[row], listing.inodes[row])
        assert (entry.device, entry.link_count) == (listing.devices[row], listing.link_counts[row])
        assert (entry.flags, entry.target) == (listing.flags[row], listing.targets.get(row))
        assert (entry.content.ids, tuple(entry.content.sizes)) == listing.contents[row][:2]
        assert [tuple(pair) for pair in entry.xattrs] == listing.xattrs.get(row, [])
        assert entry.extents == listing.extents.get(row)


@pytest.mark.skipif(sys.platform != "linux", reason="the address space can only be capped on Linux")
def test_bombs_and_lies_are_refused_without_allocating_what_they_claim() -> None:
    """In a process of its own, whose address space may not grow; a hang there fails here."""
    script = Path(__file__).with_name("format_bombs.py")
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) > 50
