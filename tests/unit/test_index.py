"""The chunk index against a dict: adding, reopening, other writers, lost and damaged local files, shared folders."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.vault import Vault, object_names

from ohdiff.errors import IntegrityError, StorageError
from ohdiff.repository import index as index_module
from ohdiff.repository.index import ChunkIndex, open_index
from ohdiff.storage import MemoryStorage
from ohdiff_format.index import PackRecord
from ohdiff_format.limits import ID_PREFIX_SIZE
from ohdiff_format.pack import BlockRecord

Model = dict[bytes, set[tuple[bytes, int, int, int]]]


def chunk_id(number: int) -> bytes:
    return hashlib.sha256(b"chunk %d" % number).digest()


def pack_of(numbers: list[int], pack: int) -> PackRecord:
    """A pack of two blocks that hold the chunks of these numbers; chunk n has n + 1 bytes."""
    half = len(numbers) // 2
    blocks = []
    for part in (numbers[:half], numbers[half:]):
        prefixes = b"".join(chunk_id(number)[:ID_PREFIX_SIZE] for number in part)
        blocks.append(BlockRecord(16 + len(part), 1, [number + 1 for number in part], prefixes))
    return PackRecord(hashlib.sha256(b"pack %d" % pack).digest(), 1_000_000, 60, bool(pack % 2), blocks)


def expected(pack: PackRecord) -> Model:
    """Where every chunk of a pack lies: (pack id, block number, offset in the block, size)."""
    found: Model = {}
    for number, block in enumerate(pack.blocks):
        start = 0
        for row, size in enumerate(block.chunk_sizes):
            prefix = block.chunk_prefixes[row * ID_PREFIX_SIZE :][:ID_PREFIX_SIZE]
            found.setdefault(prefix, set()).add((pack.pack_id, number, start, size))
            start += size
    return found


def merged(models: Iterable[Model]) -> Model:
    result: Model = {}
    for model in models:
        for prefix, places in model.items():
            result.setdefault(prefix, set()).update(places)
    return result


def assert_matches(index: ChunkIndex, model: Model, numbers: range) -> None:
    ids = [chunk_id(number) for number in numbers]
    flags = index.contains(b"".join(each[:ID_PREFIX_SIZE] for each in ids))
    for each, flag, location in zip(ids, flags, index.find(ids), strict=True):
        places = model.get(each[:ID_PREFIX_SIZE], set())
        assert bool(flag) == (location is not None) == bool(places)
        if location is not None:
            block = location.block
            assert (block.pack_id, block.number, location.offset, location.size) in places
            assert block.header_size == 60


@contextmanager
def opened(vault: Vault) -> Iterator[ChunkIndex]:
    with vault.opened() as (_, index):
        yield index


class IndexMachine(RuleBasedStateMachine):
    """Random work of several processes on one repository, each with the same local folder, against dicts."""

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.vault = Vault(MemoryStorage("index"), self.folder).create()
        self.objects: dict[bytes, Model] = {}
        self.packs = 0
        self.seen: list[bytes] = []
        self.first = self._open()
        self.second = self._open()

    def _open(self) -> ChunkIndex:
        return open_index(self.vault.open())

    def _model(self, objects: set[bytes] | None = None) -> Model:
        return merged([model for object_id, model in self.objects.items() if objects is None or object_id in objects])

    def _add(self, index: ChunkIndex, numbers: list[int]) -> None:
        self.packs += 1
        pack = pack_of(numbers, self.packs)
        object_id = index.add([pack])
        self.objects[object_id] = expected(pack)

    numbers = st.lists(st.integers(0, 59), min_size=2, max_size=12, unique=True)

    @rule(numbers=numbers)
    def add_by_the_first(self, numbers: list[int]) -> None:
        self._add(self.first, numbers)

    @rule(numbers=numbers)
    def add_by_the_second(self, numbers: list[int]) -> None:
        self._add(self.second, numbers)

    @rule(numbers=numbers)
    def add_by_another_machine(self, numbers: list[int]) -> None:
        with opened(self.vault.over(self.vault.storage)) as index:
            self._add(index, numbers)

    @rule()
    def reopen_the_first(self) -> None:
        self.first.close()
        self.first = self._open()
        assert_matches(self.first, self._model(), range(60))

    @rule()
    def reopen_the_second(self) -> None:
        self.second.close()
        self.second = self._open()
        assert_matches(self.second, self._model(), range(60))

    @rule(choice=st.randoms(use_true_random=False))
    def remove_an_index_object(self, choice: object) -> None:
        if self.objects:
            object_id = sorted(self.objects)[choice.randrange(len(self.objects))]  # type: ignore[attr-defined]
            self.vault.storage.delete(f"index/{object_id.hex()}")
            del self.objects[object_id]
            self.reopen_the_first()
            self.reopen_the_second()

    @rule()
    def lose_the_local_folder(self) -> None:
        for path in self._local_files():
            path.unlink()

    @rule(choice=st.randoms(use_true_random=False), is_cut=st.booleans())
    def damage_a_local_file(self, choice: object, is_cut: bool) -> None:
        """Anything but the rows of a table, which carry no checksum and are checked by the chunks' own ids."""
        files = [path for path in self._local_files() if path.suffix != ".ids" and path.stat().st_size]
        if files:
            path = files[choice.randrange(len(files))]  # type: ignore[attr-defined]
            damage(path, choice.randrange(path.stat().st_size), is_cut)  # type: ignore[attr-defined]

    @invariant()
    def every_process_knows_what_it_opened_with(self) -> None:
        if hasattr(self, "first"):
            for index in (self.first, self.second):
                assert_matches(index, self._model(set(index._sources)), range(60))

    def _local_files(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file() and path.name != "lock")

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.first.close()
            self.second.close()
            shutil.rmtree(self.folder)


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=12, stateful_step_count=25, deadline=None)


def damage(path: Path, offset: int, is_cut: bool) -> None:
    """Replace a file by one with a flipped bit or a missing end, as a new file: it may be mapped by somebody."""
    data = bytearray(path.read_bytes())
    if is_cut:
        del data[offset:]
    else:
        data[offset] ^= 0x40
    path.unlink()
    path.write_bytes(data)


def local_files(vault: Vault) -> list[Path]:
    assert vault.cache is not None
    return sorted(path for path in vault.cache.rglob("*") if path.is_file() and path.name != "lock")


def filled(vault: Vault, packs: int = 3) -> Model:
    records = [pack_of(list(range(number * 10, number * 10 + 12)), number) for number in range(packs)]
    with opened(vault) as index:
        for record in records:
            index.add([record])
    return merged(map(expected, records))


def test_every_damaged_local_file_is_noticed_or_harmless(vault: Vault) -> None:
    model = filled(vault)
    whole = {path: path.read_bytes() for path in local_files(vault)}
    assert len(whole) == 7
    for path, data in whole.items():
        for offset in range(0, len(data), max(1, len(data) // 23)):
            for is_cut in (False, True):
                damage(path, offset, is_cut)
                with opened(vault) as index:
                    try:
                        assert_matches(index, model, range(60))
                    except AssertionError:
                        # A row was hit: a chunk may be missed or misplaced, which its id shows, none is invented.
                        assert path.suffix == ".ids"
                        assert not is_cut
                        assert_nothing_invented(index, model)
                    except IntegrityError as error:
                        assert path.suffix == ".ids"
                        assert str(vault.cache) in error.hint or str(vault.cache) in error.message
                for other in local_files(vault):
                    other.unlink()
                for other, content in whole.items():
                    other.write_bytes(content)


def assert_nothing_invented(index: ChunkIndex, model: Model) -> None:
    strangers = [chunk_id(number)[:ID_PREFIX_SIZE] for number in range(1000, 1200)]
    assert not any(index.contains(b"".join(strangers)))
    assert not set(strangers) & set(model)


def test_an_index_of_many_runs_is_merged_and_stays_small(vault: Vault) -> None:
    model = filled(vault, packs=40)
    with opened(vault) as index:
        assert len(index._segments) <= index_module._SEGMENTS_MAX
        assert_matches(index, model, range(450))
        assert index.chunk_count >= 400
        assert sorted(block.pack_id for block in index.blocks()) == sorted(
            pack_of([1, 2], number).pack_id for number in range(40) for _ in range(2)
        )
    segments = {path.stem for path in local_files(vault) if path.name.startswith("segment-")}
    assert len(segments) <= index_module._SEGMENTS_MAX


def test_learning_many_objects_in_several_runs_gives_the_same(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    model = filled(vault, packs=9)
    monkeypatch.setattr(index_module, "_CHUNKS_PER_RUN", 20)
    with opened(vault.over(vault.storage)) as index:
        assert len(index._segments) > 2
        assert_matches(index, model, range(110))


def test_the_local_folder_of_another_repository_is_not_believed(vault: Vault, tmp_path: Path) -> None:
    filled(vault)
    other = Vault(MemoryStorage("other"), vault.cache).create()
    with opened(other) as index:
        assert index.chunk_count == 0
    assert vault.cache is not None
    mine, theirs = vault.cache / vault.open().id_hex, vault.cache / other.open().id_hex
    shutil.rmtree(theirs)
    shutil.copytree(mine, theirs)
    with opened(other) as index:
        assert index.chunk_count == 0


def test_a_current_local_index_reads_no_index_objects(vault: Vault) -> None:
    model = filled(vault)
    names = object_names(vault.storage, ["index"])
    reads: list[str] = []

    class Watched(MemoryStorage):
        def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
            reads.append(name)
            return vault.storage.read(name, offset, size)

        def list_objects(self, folder: str) -> object:  # type: ignore[override]
            return vault.storage.list_objects(folder)

        def exists(self, name: str) -> bool:
            return vault.storage.exists(name)

    watched = vault.over(Watched("watched"))
    watched.cache = vault.cache
    with opened(watched) as index:
        assert_matches(index, model, range(60))
    assert not set(reads) & set(names)


def test_a_temporary_index_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    vault = Vault(MemoryStorage("test")).create()
    with opened(vault) as index:
        index.add([pack_of([1, 2, 3], 1)])
        assert list(tmp_path.iterdir())
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_index_object_is_named(vault: Vault) -> None:
    filled(vault)
    (name, *_) = object_names(vault.storage, ["index"])
    data = bytearray(vault.storage.read(name))
    data[-5] ^= 1
    vault.storage.delete(name)
    vault.storage.write_new(name, bytes(data))
    with pytest.raises(IntegrityError) as caught, opened(vault.over(vault.storage)):
        pass
    assert caught.value.item == name


def test_a_local_folder_that_cannot_be_written_is_a_storage_error_that_names_it(vault: Vault) -> None:
    filled(vault)
    with vault.opened() as (_, index):
        shutil.rmtree(index._folder)
        index._folder.write_bytes(b"a file")
        with pytest.raises(StorageError) as caught:
            index.add([pack_of([70, 71], 99)])
        assert caught.value.item == str(index._folder)
