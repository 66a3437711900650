"""Leaves and content lists: round trips at the edges, every check, and the laws of how leaves are cut."""

from __future__ import annotations

import random
from dataclasses import fields

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ohdiff_format import tree
from ohdiff_format.errors import FormatError
from ohdiff_format.limits import CHUNK_SIZE_BYTES_MAX, CONTENT_DEPTH_MAX, LEAF_ROWS_MAX
from ohdiff_format.tree import EMPTY_CONTENT, TIME_UNKNOWN, Content, Listing

I63, U64 = 2**63 - 1, 2**64 - 1
COLUMNS = [
    "names",
    "modes",
    "uids",
    "gids",
    "sizes",
    "mtimes",
    "ctimes",
    "btimes",
    "inodes",
    "devices",
    "link_counts",
    "rdevs",
    "flags",
    "marks",
    "content_depths",
    "content_counts",
    "content_ids",
    "content_sizes",
    "targets",
    "xattrs",
    "extents",
]


def listing_of(count: int, **columns: object) -> Listing:
    """A listing of plain entries with some columns replaced."""
    listing = Listing(names=[b"%05d" % row for row in range(count)])
    for field in fields(Listing):
        if field.name not in ("names", "contents", "targets", "xattrs", "extents"):
            setattr(listing, field.name, [0] * count)
    listing.contents = [EMPTY_CONTENT] * count
    for name, value in columns.items():
        setattr(listing, name, value)
    return listing


def content(*sizes: int, depth: int = 0) -> Content:
    """A content with chunks of these lengths."""
    return Content(bytes(range(32)) * len(sizes), sizes, depth)


def same(listing: Listing) -> None:
    """Assert that a listing survives encoding."""
    assert tree.decode_listing(tree.encode_listing(listing)) == listing


@pytest.mark.parametrize("count", [0, 1, 2, 300])
def test_a_listing_of_constant_columns_comes_back(count: int) -> None:
    same(listing_of(count))
    same(listing_of(count, modes=[0o100644] * count, uids=[2**32 - 1] * count, inodes=list(range(7, 7 + count))))


def test_constant_columns_take_one_number() -> None:
    leaf = msgspec.msgpack.decode(tree.encode_listing(listing_of(300, uids=[70000] * 300)))
    assert leaf[COLUMNS.index("uids")] == 70000


@pytest.mark.parametrize("field", ["mtimes", "ctimes", "btimes"])
@pytest.mark.parametrize(
    "times", [[-1, 0, 1], [TIME_UNKNOWN, I63, TIME_UNKNOWN], [I63, -(2**63), 0], [5, 5, 5], [-1, -1, I63]]
)
def test_times_at_the_edges_come_back(field: str, times: list[int]) -> None:
    same(listing_of(3, **{field: times}))
    same(listing_of(3, **{field: times, "ctimes": times[::-1]}))


@pytest.mark.parametrize("distance", [0, 1, -1, 10**12, 2**63 - 1])
def test_modification_times_at_one_distance_to_the_status_change_take_one_number(distance: int) -> None:
    ctimes = [5, 10**18, -7]
    listing = listing_of(3, ctimes=ctimes, mtimes=[tree_wrap(ctime - distance) for ctime in ctimes])
    same(listing)
    assert msgspec.msgpack.decode(tree.encode_listing(listing), strict=False)[COLUMNS.index("mtimes")] == distance


def tree_wrap(value: int) -> int:
    """A number modulo 2^64, as signed 64-bit."""
    return (value + 2**63) % 2**64 - 2**63


@pytest.mark.parametrize("inodes", [[U64, 0, U64], [0, U64, 2**63], [2**63, 2**63 - 1, 1], [U64, U64, U64], [1, 2, 3]])
def test_inodes_of_64_bits_come_back(inodes: list[int]) -> None:
    same(listing_of(3, inodes=inodes))
    same(listing_of(1, inodes=inodes[:1]))


def test_other_numbers_at_their_limits_come_back() -> None:
    same(
        listing_of(
            2,
            modes=[0xFFFF, 0],
            uids=[2**32 - 1, 0],
            gids=[0, 2**32 - 1],
            sizes=[I63, 0],
            devices=[U64, 0],
            link_counts=[U64, 1],
            rdevs=[0, U64],
            flags=[U64, 1],
            marks=[3, 0],
        )
    )


def test_names_of_any_bytes_and_sparse_fields_come_back() -> None:
    names = sorted([b"\x01", b"\xff\xfe", "ü".encode(), b" ", b"...", b"-rf", b"a\nb", b"n" * 255])
    same(
        listing_of(
            8,
            names=names,
            sizes=[100] * 8,
            targets={0: b"/etc/passwd", 7: b"\xff"},
            xattrs={1: [(b"a", b""), (b"b", bytes(70000))], 2: []},
            extents={3: [], 4: [0, 1], 5: [0, 100], 6: [10, 20, 21, 100]},
        )
    )


def test_contents_of_every_depth_come_back() -> None:
    contents = [
        EMPTY_CONTENT,
        content(1, 2, 3),
        content(CHUNK_SIZE_BYTES_MAX),
        content(I63, 0, depth=CONTENT_DEPTH_MAX),
    ]
    same(listing_of(4, contents=contents))
    same(listing_of(2, contents=[content(5), content(6)]))
    for value in [*contents, content(*range(1000))]:
        assert tree.decode_content(tree.encode_content(value)) == value


def test_the_ids_of_a_content_are_taken_apart() -> None:
    ids = [bytes([number]) * 32 for number in range(3)]
    assert Content(b"".join(ids), (1, 2, 3)).chunk_ids() == ids
    assert EMPTY_CONTENT.chunk_ids() == []


def broken(field: str, value: object, count: int = 2, **columns: object) -> bytes:
    """The bytes of a leaf with one field replaced by anything."""
    leaf = msgspec.msgpack.decode(tree.encode_listing(listing_of(count, **columns)), strict=False)
    leaf[COLUMNS.index(field)] = value
    return msgspec.msgpack.encode(leaf)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("names", [b"b", b"a"]),
        ("names", [b"a", b"a"]),
        ("names", [b"", b"a"]),
        ("names", [b".", b"a"]),
        ("names", [b"..", b"a"]),
        ("names", [b"a", b"b/c"]),
        ("names", [b"a", b"b\0"]),
        ("names", ["a", "b"]),
        ("names", [b"a"]),
        ("names", [b"a", b"b", b"c"]),
        ("names", 5),
        ("modes", -1),
        ("modes", 0x10000),
        ("modes", [0, 0, 0]),
        ("modes", [0]),
        ("modes", None),
        ("modes", [0, -1]),
        ("modes", [0, 0.5]),
        ("uids", -1),
        ("uids", [0, 2**32]),
        ("gids", 2**32),
        ("sizes", -1),
        ("sizes", [0, 2**63]),
        ("mtimes", None),
        ("mtimes", "5"),
        ("mtimes", [1]),
        ("mtimes", [1, 2, 3]),
        ("ctimes", 5),
        ("btimes", [0]),
        ("inodes", 5),
        ("devices", -1),
        ("link_counts", [1, -1]),
        ("rdevs", -5),
        ("flags", [-1, 0]),
        ("marks", -1),
        ("content_depths", -1),
        ("content_depths", CONTENT_DEPTH_MAX + 1),
        ("content_depths", [0, CONTENT_DEPTH_MAX + 1]),
        ("content_counts", [-1, 1]),
        ("content_counts", 1),
        ("content_counts", 2**62),
        ("content_counts", [0, 1]),
        ("content_ids", bytes(32)),
        ("content_ids", "text"),
        ("content_sizes", [1]),
        ("content_sizes", [-1]),
        ("targets", {2: b"x"}),
        ("targets", {-1: b"x"}),
        ("targets", {0: b""}),
        ("targets", {0: b"a\0b"}),
        ("targets", {0: "text"}),
        ("targets", {b"0": b"x"}),
        ("targets", []),
        ("xattrs", {2: []}),
        ("xattrs", {0: [[b"b", b""], [b"a", b""]]}),
        ("xattrs", {0: [[b"a", b""], [b"a", b""]]}),
        ("xattrs", {0: [[b"", b""]]}),
        ("xattrs", {0: [[b"a\0", b""]]}),
        ("xattrs", {0: [[b"a"]]}),
        ("xattrs", {0: [[b"a", b"", b""]]}),
        ("extents", {2: []}),
        ("extents", {0: [1]}),
        ("extents", {0: [0, 0]}),
        ("extents", {0: [2, 1]}),
        ("extents", {0: [0, 1, 1, 2]}),
        ("extents", {0: [-1, 1]}),
        ("extents", {0: [0, 11]}),
        ("extents", {0: [11, 12]}),
    ],
)
def test_a_leaf_that_breaks_a_rule_is_refused(field: str, value: object) -> None:
    sound = broken("sizes", [10, 10])
    assert tree.decode_listing(sound).sizes == [10, 10]
    with pytest.raises(FormatError):
        tree.decode_listing(broken(field, value, sizes=[10, 10]))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("content_counts", [1, 2]),
        ("content_counts", [2, 2]),
        ("content_counts", [3, -1]),
        ("content_ids", bytes(63)),
        ("content_ids", bytes(96)),
        ("content_sizes", [1, CHUNK_SIZE_BYTES_MAX + 1]),
        ("content_sizes", [1, 2**63]),
    ],
)
def test_a_leaf_whose_contents_do_not_add_up_is_refused(field: str, value: object) -> None:
    contents = [content(1), content(2)]
    assert tree.decode_listing(broken("content_depths", [0, 0], contents=contents)).contents == contents
    with pytest.raises(FormatError):
        tree.decode_listing(broken(field, value, contents=contents))


def test_only_the_lengths_of_lists_may_be_longer_than_a_chunk() -> None:
    deep, flat = content(CHUNK_SIZE_BYTES_MAX + 1, depth=1), content(CHUNK_SIZE_BYTES_MAX + 1)
    same(listing_of(2, contents=[deep, content(1)]))
    for contents in ([flat, content(1)], [deep, flat]):
        with pytest.raises(FormatError, match="larger than its limit"):
            tree.decode_listing(tree.encode_listing(listing_of(2, contents=contents)))
    with pytest.raises(FormatError, match="larger than its limit"):
        tree.decode_content(tree.encode_content(flat))


def test_an_empty_leaf_may_not_carry_contents() -> None:
    for field, value in (("content_sizes", [1]), ("content_ids", bytes(32))):
        with pytest.raises(FormatError):
            tree.decode_listing(broken(field, value, count=0))


def test_a_leaf_has_all_its_fields_and_may_have_later_ones() -> None:
    whole = msgspec.msgpack.decode(tree.encode_listing(listing_of(2)), strict=False)
    assert len(whole) == len(COLUMNS) == 21
    for count in range(21):
        with pytest.raises(FormatError):
            tree.decode_listing(msgspec.msgpack.encode(whole[:count]))
    later = msgspec.msgpack.encode([*whole, {"later": [1, 2]}])
    assert tree.decode_listing(later) == listing_of(2)


def test_a_deeply_nested_later_field_is_refused_and_not_an_internal_error() -> None:
    whole = tree.encode_listing(listing_of(0))
    assert whole.startswith(b"\xdc\x00\x15")
    with pytest.raises(FormatError):
        tree.decode_listing(b"\xdc\x00\x16" + whole[3:] + b"\x91" * 100_000 + b"\xc0")
    with pytest.raises(FormatError):
        tree.decode_content(b"\x94\x00\xc4\x00\x90" + b"\x91" * 100_000 + b"\xc0")


def test_leaves_and_lists_over_the_limit_of_a_chunk_are_refused() -> None:
    for decode in (tree.decode_listing, tree.decode_content):
        with pytest.raises(FormatError, match="larger than its limit"):
            decode(bytes(CHUNK_SIZE_BYTES_MAX + 1))


def test_a_leaf_of_too_many_rows_is_refused() -> None:
    same(listing_of(LEAF_ROWS_MAX))
    with pytest.raises(FormatError, match="length"):
        tree.decode_listing(tree.encode_listing(listing_of(LEAF_ROWS_MAX + 1)))


@pytest.mark.parametrize(
    "data",
    [
        msgspec.msgpack.encode([0, bytes(31), [1]]),
        msgspec.msgpack.encode([0, bytes(64), [1]]),
        msgspec.msgpack.encode([0, b"", [1]]),
        msgspec.msgpack.encode([-1, b"", []]),
        msgspec.msgpack.encode([CONTENT_DEPTH_MAX + 1, b"", []]),
        msgspec.msgpack.encode([0, bytes(32), [-1]]),
        msgspec.msgpack.encode([0, bytes(32)]),
        msgspec.msgpack.encode({"depth": 0}),
        msgspec.msgpack.encode([0, b"", []]) + b"\0",
        b"",
    ],
)
def test_a_content_list_that_breaks_a_rule_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        tree.decode_content(data)


I64S = st.integers(-(2**63), I63)
U64S = st.integers(0, U64)
NAMES = st.binary(min_size=1, max_size=12).filter(lambda name: not set(name) & {0, 47} and name not in (b".", b".."))
CONTENTS = st.lists(st.integers(0, CHUNK_SIZE_BYTES_MAX), max_size=3).map(lambda sizes: content(*sizes))


@st.composite
def listings(draw: st.DrawFn) -> Listing:
    """Any listing; columns are often constant."""
    names = sorted(draw(st.sets(NAMES, max_size=6)))
    count = len(names)

    def column(values: st.SearchStrategy[int]) -> list[int]:
        varied = st.lists(values, min_size=count, max_size=count)
        return draw(st.one_of(values.map(lambda value: [value] * count), varied))

    return Listing(
        names,
        column(st.integers(0, 0xFFFF)),
        *(column(st.integers(0, 2**32 - 1)) for _ in range(2)),
        column(st.integers(0, I63)),
        *(column(I64S) for _ in range(3)),
        *(column(U64S) for _ in range(6)),
        draw(st.lists(CONTENTS, min_size=count, max_size=count)),
    )


@settings(deadline=None)
@given(listings())
def test_any_listing_comes_back(listing: Listing) -> None:
    assert tree.decode_listing(tree.encode_listing(listing)) == listing


NAME_SETS = st.sets(st.integers(0, 10**6), max_size=400).map(lambda numbers: sorted(b"%06d" % n for n in numbers))


def crowd(seed: int, count: int) -> list[bytes]:
    """Sorted names of a large directory."""
    return sorted({b"file-%08x.dat" % number for number in random.Random(seed).sample(range(2**32), count)})


@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 2048, 2049, 50_000])
def test_leaves_cover_a_directory_within_their_limits(count: int) -> None:
    names = crowd(count, count)
    ends = tree.leaf_bounds(names)
    sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    assert sum(sizes) == count
    assert all(tree.LEAF_ENTRIES_MIN <= size <= tree.LEAF_ENTRIES_MAX for size in sizes[:-1])
    assert all(0 < size <= tree.LEAF_ENTRIES_MAX for size in sizes[-1:])


def test_a_name_alone_decides_whether_a_leaf_may_end_with_it() -> None:
    names = crowd(7, 50_000)
    ends = tree.leaf_bounds(names)
    sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    by_name = [end for end, size in zip(ends[:-1], sizes, strict=False) if size < tree.LEAF_ENTRIES_MAX]
    assert len(by_name) > 50
    assert all(tree.is_leaf_end(names[end - 1]) for end in by_name)


@settings(deadline=None)
@given(NAME_SETS, st.integers(0, 10**6), st.integers(0, 3))
def test_what_comes_after_a_name_does_not_change_the_leaves_before_it(names: list[bytes], new: int, seed: int) -> None:
    names = sorted({*names, *crowd(seed, 3000)})
    inserted = sorted({*names, b"%06d" % new})
    row = inserted.index(b"%06d" % new)
    before, after = tree.leaf_bounds(names), tree.leaf_bounds(inserted)
    assert [end for end in before if end <= row and end < len(names)] == [end for end in after if end <= row]


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 4))
def test_leaves_agree_again_after_their_first_common_end(new: int, seed: int) -> None:
    names = crowd(seed, 6000)
    inserted = sorted({*names, b"file-%08x.dat" % new})
    before = [names[end - 1] for end in tree.leaf_bounds(names)]
    after = [inserted[end - 1] for end in tree.leaf_bounds(inserted)]
    common = [name for name in after if name in before and name > b"file-%08x.dat" % new]
    if common:
        assert before[before.index(common[0]) :] == after[after.index(common[0]) :]


def test_a_new_name_in_a_large_directory_changes_hardly_more_than_one_leaf() -> None:
    names = crowd(1, 30_000)
    before = {tuple(names[start:end]) for start, end in leaves(names)}
    changed = []
    for name in crowd(2, 60):
        inserted = sorted([*names, name])
        changed.append(sum(tuple(inserted[start:end]) not in before for start, end in leaves(inserted)))
    assert max(changed) <= 3
    assert sum(changed) <= 1.25 * len(changed)


def leaves(names: list[bytes]) -> list[tuple[int, int]]:
    """The half-open row ranges of a directory's leaves."""
    ends = tree.leaf_bounds(names)
    return list(zip([0, *ends], ends, strict=False))
