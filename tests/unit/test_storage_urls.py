"""What users type for a repository, and what they get."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import pytest

from ohdiff.errors import NoRepositoryError, RepositoryExistsError, UsageError
from ohdiff.storage import LocalStorage, MemoryStorage, open_storage
from ohdiff.storage.names import is_object_name


@pytest.mark.parametrize("name", ["plain", "with space", "a:b", "ümlaut", "50%", "q?x#y", os.fsdecode(b"raw-\xff")])
@pytest.mark.parametrize("form", ["{}", "local:{}", "file:{}", "FILE:{}", "file://localhost{}", "LOCAL:{}"])
def test_a_folder_can_be_named_in_every_form(tmp_path: Path, name: str, form: str) -> None:
    path = tmp_path / name
    url = form.format(quote(os.fsencode(path)) if "file" in form.lower() else path)
    created = open_storage(url, create=True)
    created.write_new("config", b"config")
    assert isinstance(created, LocalStorage)
    assert created.location == open_storage(url).location == str(path)
    with pytest.raises(RepositoryExistsError):
        open_storage(url, create=True)


def test_three_slashes_are_usual() -> None:
    with pytest.raises(NoRepositoryError, match="at /nowhere/at all"):
        open_storage("file:///nowhere/at%20all")


@pytest.mark.parametrize("form", ["relative", "./rel:ative", "local:relative", "local:rel:ative"])
def test_a_relative_path_is_taken_from_here(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_storage(form, create=True).location == str(tmp_path / form.removeprefix("local:"))


def test_a_tilde_is_a_name_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_storage("~", create=True).location == str(tmp_path / "~")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3:bucket/path", "unknown kind of storage 's3'"),
        ("sftp:user@host:/path", "unknown kind of storage 'sftp'"),
        ("https://example.org/x", "unknown kind of storage 'https'"),
        ("backup:old", "unknown kind of storage 'backup'"),
        ("", "names no folder"),
        ("local:", "names no folder"),
        ("memory:", "names no storage"),
        ("file:", "names no file"),
        ("file:relative", "names no file"),
        ("file://server/share", "names no file"),
        ("file:///a?b", "names no file"),
        ("file:///a#b", "names no file"),
        ("file://[half/a", "no file URL"),
        ("file:///a%00b", "names no folder"),
        ("a\0b", "names no folder"),
    ],
)
@pytest.mark.parametrize("create", [False, True])
def test_what_cannot_be_understood_is_wrong_usage(url: str, message: str, create: bool) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        open_storage(url, create=create)
    assert caught.value.hint


def test_an_unknown_kind_names_the_known_ones_and_the_way_out() -> None:
    with pytest.raises(UsageError) as caught:
        open_storage("backup:old")
    for known in ("local:PATH", "file:///PATH", "memory:NAME"):
        assert known in str(caught.value)
    assert "./backup:old" in caught.value.hint


def test_memory_is_shared_by_name_and_forgotten_when_discarded() -> None:
    with pytest.raises(NoRepositoryError):
        open_storage("memory:shared")
    first = open_storage("memory:shared", create=True)
    first.write_new("config", b"config")
    assert open_storage("memory:shared").read("config") == b"config"
    with pytest.raises(NoRepositoryError):
        open_storage("memory:other")
    MemoryStorage.discard("shared")
    MemoryStorage.discard("shared")
    with pytest.raises(NoRepositoryError):
        open_storage("memory:shared")


def test_a_copy_of_memory_goes_its_own_way() -> None:
    first = MemoryStorage("one")
    first.write_new("config", b"config")
    twin = first.copy()
    twin.write("index/" + "a" * 64, b"x")
    first.delete("config")
    assert first.list_objects("index") == []
    assert twin.read("config") == b"config"


def test_names_of_objects() -> None:
    assert is_object_name("config")
    assert is_object_name("packs/" + "0123456789abcdef" * 4)
    assert is_object_name("keys/" + "0123456789abcdef")
    for name in ("Config", "config\n", "packs/" + "٣" * 64, "packs/" + "a" * 64 + "/", "packs//" + "a" * 64):
        assert not is_object_name(name)
