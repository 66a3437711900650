"""Keys: several ways to open one repository, none to open it without, and none lost by accident."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.vault import Vault, chunker, object_names, replace_object

from ohdiff.errors import (
    IntegrityError,
    RepositoryError,
    RepositoryExistsError,
    UnsupportedFormatError,
    UsageError,
    WrongKeyError,
)
from ohdiff.repository.keys import (
    KeyDescription,
    KeyFile,
    Password,
    add_key,
    generate_key_file,
    list_keys,
    remove_key,
)
from ohdiff.repository.repository import create_repository, open_repository
from ohdiff.storage import MemoryStorage
from ohdiff_format import keys as format_keys


@pytest.fixture(autouse=True)
def _light_stretching(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parameters stand in each key object, so light ones test the same."""
    monkeypatch.setattr(format_keys, "ARGON2_MEMORY_KIB", 64)
    monkeypatch.setattr(format_keys, "ARGON2_PASSES", 1)


def test_every_key_opens_the_same_repository(vault: Vault) -> None:
    first = vault.open()
    password = add_key(vault.storage, first.master_key, Password(b"secret"), KeyDescription("mine", "desk", 5))
    other_file = generate_key_file()
    add_key(vault.storage, first.master_key, other_file, KeyDescription("spare", "", 6))
    for unlock in (vault.key, Password(b"secret"), other_file):
        assert open_repository(vault.storage, unlock).master_key == first.master_key
    assert open_repository(vault.storage, Password(b"secret")).key_id == password
    described = [(stored.key.label, stored.key.host, stored.key.kdf) for stored in list_keys(vault.storage)]
    assert described == [("test", "host", "keyfile"), ("mine", "desk", "argon2id"), ("spare", "", "keyfile")]


@pytest.mark.parametrize("unlock", [None, Password(b""), Password(b"Secret"), KeyFile(bytes(32))])
def test_nothing_else_opens_it(vault: Vault, unlock: Password | KeyFile | None) -> None:
    add_key(vault.storage, vault.open().master_key, Password(b"secret"), KeyDescription())
    with pytest.raises(WrongKeyError):
        open_repository(vault.storage, unlock)


def test_a_removed_key_opens_nothing_and_the_last_one_stays(vault: Vault) -> None:
    repository = vault.open()
    added = add_key(vault.storage, repository.master_key, Password(b"secret"), KeyDescription())
    remove_key(vault.storage, repository.key_id)
    with pytest.raises(WrongKeyError):
        vault.open()
    with pytest.raises(RepositoryError):
        remove_key(vault.storage, added)
    with pytest.raises(UsageError):
        remove_key(vault.storage, repository.key_id)
    assert open_repository(vault.storage, Password(b"secret")).id_hex == repository.id_hex
    remove_key(vault.storage, added, allow_last=True)
    assert object_names(vault.storage, ["keys"]) == []


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_file_has_32_bytes(size: int) -> None:
    with pytest.raises(UsageError):
        KeyFile(bytes(size))


def test_no_key_object_holds_the_master_key(vault: Vault) -> None:
    master_key = vault.open().master_key
    add_key(vault.storage, master_key, Password(b"secret"), KeyDescription())
    for name in object_names(vault.storage):
        assert master_key not in vault.storage.read(name)


def test_a_repository_is_not_made_over_another(vault: Vault) -> None:
    before = {name: vault.storage.read(name) for name in ["config", *object_names(vault.storage)]}
    with pytest.raises(RepositoryExistsError):
        vault.create()
    assert {name: vault.storage.read(name) for name in ["config", *object_names(vault.storage)]} == before


def test_without_encryption_no_key_is_needed(vault: Vault) -> None:
    plain = Vault(MemoryStorage("plain")).create(encryption="none")
    assert open_repository(plain.storage, None).key_id == ""
    # Who has a key and is offered a repository without encryption is being deceived.
    with pytest.raises(WrongKeyError):
        open_repository(plain.storage, vault.key)
    assert object_names(plain.storage, ["keys"]) == []


def test_what_an_interrupted_making_left_does_not_keep_the_same_password_out() -> None:
    storage = MemoryStorage("twice")
    for label in "abcdef":
        add_key(storage, bytes([ord(label)]) * 32, Password(b"secret"), KeyDescription(label))
    made = create_repository(
        storage,
        encryption="aes-256-gcm",
        unlock=Password(b"secret"),
        chunker=chunker(),
        description=KeyDescription("last"),
    )
    opened = open_repository(storage, Password(b"secret"))
    assert (opened.master_key, opened.key_id) == (made.master_key, made.key_id)


def test_a_config_that_was_changed_is_an_integrity_error(vault: Vault) -> None:
    data = vault.storage.read("config")
    replace_object(vault.storage, "config", data.replace(b'"avg_size":65536', b'"avg_size":65535'))
    with pytest.raises(IntegrityError) as caught:
        vault.open()
    assert caught.value.item == "config"


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"version":1', b'"version":2'), (b'"mandatory_features":[]', b'"mandatory_features":["x"]')],
)
def test_a_later_format_is_refused_before_any_key_is_tried(vault: Vault, old: bytes, new: bytes) -> None:
    data = vault.storage.read("config")
    assert old in data
    replace_object(vault.storage, "config", data.replace(old, new))
    with pytest.raises(UnsupportedFormatError):
        open_repository(vault.storage, KeyFile(bytes(32)))


def test_sub_keys_differ(vault: Vault) -> None:
    repository = vault.open()
    assert len({repository.master_key, repository.chunk_id_key, repository.chunker_key, repository.wrapping_key}) == 4


def test_a_password_for_a_repository_without_encryption_is_refused(tmp_path: Path) -> None:
    vault = Vault(MemoryStorage("open"), tmp_path).create(encryption="none")
    assert vault.open().config.encryption == "none"
    with pytest.raises(WrongKeyError, match="is not encrypted"):
        open_repository(vault.storage, Password(b"a secret of another repository"))
