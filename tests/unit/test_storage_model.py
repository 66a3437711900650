"""Random operations on a storage equal the same operations on a dict."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ohdiff.errors import IntegrityError, ObjectMissingError
from ohdiff.storage import FOLDERS, LocalStorage, MemoryStorage, ObjectExistsError, Storage
from ohdiff.storage.system_calls import SystemCalls

NAMES = st.sampled_from([f"{folder}/{digit * 64}" for folder in FOLDERS for digit in "01"] + ["packs/0" + "1" * 63])
DATA = st.binary(max_size=40)


class Quick(SystemCalls):
    """Without syncs, which change nothing that can be seen here."""

    def sync_file(self, descriptor: int) -> None: ...

    def sync_folder(self, path: Path) -> None: ...


class StorageMachine(RuleBasedStateMachine):
    """A storage beside a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[str, bytes] = {}
        self.storage = self.make()

    def make(self) -> Storage:
        raise NotImplementedError

    @rule(name=NAMES, data=DATA, cut=st.integers(0, 50))
    def write_in_parts(self, name: str, data: bytes, cut: int) -> None:
        with self.storage.open_writer(name.partition("/")[0]) as writer:
            writer.write(data[:cut])
            writer.write(data[cut:])
            if self.model.setdefault(name, data) == data:
                writer.commit(name)
            else:
                with pytest.raises(IntegrityError):
                    writer.commit(name)

    @rule(name=NAMES, data=DATA)
    def write(self, name: str, data: bytes) -> None:
        if self.model.setdefault(name, data) == data:
            self.storage.write(name, data)
        else:
            with pytest.raises(IntegrityError):
                self.storage.write(name, data)

    @rule(name=NAMES | st.just("config"), data=DATA)
    def write_new(self, name: str, data: bytes) -> None:
        if name in self.model:
            with pytest.raises(ObjectExistsError):
                self.storage.write_new(name, data)
        else:
            self.storage.write_new(name, data)
            self.model[name] = data

    @rule(folder=st.sampled_from(FOLDERS), data=DATA)
    def abort(self, folder: str, data: bytes) -> None:
        with self.storage.open_writer(folder) as writer:
            writer.write(data)

    @rule(name=NAMES | st.just("config"))
    def delete(self, name: str) -> None:
        if name in self.model:
            self.storage.delete(name)
            del self.model[name]
        else:
            with pytest.raises(ObjectMissingError):
                self.storage.delete(name)

    @rule(name=NAMES | st.just("config"), offset=st.integers(0, 60), size=st.none() | st.integers(0, 60))
    def read(self, name: str, offset: int, size: int | None) -> None:
        data = self.model.get(name)
        end = offset + (size or 0)
        if data is None or end > len(data):
            with pytest.raises(ObjectMissingError if data is None else IntegrityError):
                self.storage.read(name, offset, size)
        else:
            assert self.storage.read(name, offset, size) == data[offset : None if size is None else end]

    @invariant()
    def everything_is_as_in_the_model(self) -> None:
        listed = {info.name: info.size for folder in FOLDERS for info in self.storage.list_objects(folder)}
        assert listed == {name: len(data) for name, data in self.model.items() if name != "config"}
        assert self.storage.exists("config") == ("config" in self.model)
        assert self.storage.stale_temporaries() == []


class LocalMachine(StorageMachine):
    def make(self) -> Storage:
        self.folder = Path(tempfile.mkdtemp())
        return LocalStorage.create(self.folder / "repository", Quick())

    def teardown(self) -> None:
        assert list((self.folder / "repository" / "tmp").iterdir()) == []
        shutil.rmtree(self.folder)


class MemoryMachine(StorageMachine):
    def make(self) -> Storage:
        return MemoryStorage("model")


TestLocal = LocalMachine.TestCase
TestLocal.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestMemory = MemoryMachine.TestCase
TestMemory.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
