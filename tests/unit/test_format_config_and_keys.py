"""Config and key objects: what comes back, and what is refused with which error."""

from __future__ import annotations

import json

import msgspec
import pytest

from ohdiff_format import config as format_config
from ohdiff_format import keys as format_keys
from ohdiff_format.config import ChunkerConfig, Config
from ohdiff_format.errors import AuthenticationError, FormatError, UnknownFeatureError
from ohdiff_format.keys import KeyObject

MAC_KEY = bytes(range(32))
CHUNKER = ChunkerConfig("g32s2/1", 16384, 65536, 262144, 16384, 262144)
SMALL_CHUNKER = ChunkerConfig("g32s2/1", 128, 4095, 8192, 16384, 262144)
CONFIG = Config(format_config.FORMAT_NAME, 1, bytes(32), 5, "aes-256-gcm", CHUNKER)
KEY = KeyObject(1, "argon2id", bytes(40), bytes(16), 64, 1, 2, "label", 5, "host")


def changed(data: bytes, path: str, value: object) -> bytes:
    """A stored JSON object with one field changed; "a.b" is field b of field a, and ... removes it."""
    line, _, rest = data.partition(b"\n")
    whole = json.loads(line)
    *parents, name = path.split(".")
    owner = whole
    for parent in parents:
        owner = owner[parent]
    if value is ...:
        del owner[name]
    else:
        owner[name] = value
    return json.dumps(whole).encode() + b"\n" + rest


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        Config(format_config.FORMAT_NAME, 1, bytes(32), -1, "none", CHUNKER, (), ("hint",), bytes(range(32))),
        Config(
            format_config.FORMAT_NAME,
            1,
            bytes(range(32)),
            2**63 - 1,
            "chacha20-poly1305",
            ChunkerConfig("g32s2/1", 128, 4096, 16 << 20, 1, 1 << 22, bytes(32)),
        ),
    ],
)
def test_a_config_comes_back_and_is_authentic(config: Config) -> None:
    data = format_config.encode_config(config, MAC_KEY)
    assert format_config.decode_config(data) == config
    format_config.authenticate_config(data, MAC_KEY)


def test_a_config_is_two_lines_of_text() -> None:
    lines = format_config.encode_config(CONFIG, MAC_KEY).decode().split("\n")
    assert len(lines) == 3
    assert json.loads(lines[0])["format"] == "ohdiff repository"
    assert len(bytes.fromhex(lines[1])) == 32
    assert lines[2] == ""


@pytest.mark.parametrize(
    ("path", "value", "error", "message"),
    [
        ("format", "borg", FormatError, "not the config of an ohdiff repository"),
        ("version", 2, UnknownFeatureError, "version 2"),
        ("version", 0, UnknownFeatureError, "version 0"),
        ("mandatory_features", ["b", "a"], UnknownFeatureError, "mandatory feature a, b"),
        ("encryption", "rot13", UnknownFeatureError, "encryption rot13"),
        ("encryption", "none", FormatError, "master key stands in the config exactly when"),
        ("master_key", "AAAA", FormatError, "32 bytes"),
        ("master_key", "A" * 43 + "=", FormatError, "master key stands in the config exactly when"),
        ("id", "AAAA", FormatError, "32 bytes"),
        ("id", "not base64!", FormatError, "not a config"),
        ("id", ..., FormatError, "not a config"),
        ("created_ns", 2**63, FormatError, "not a config"),
        ("created_ns", "now", FormatError, "not a config"),
        ("chunker", 5, FormatError, "not a config"),
        ("chunker.rule", "g64/1", UnknownFeatureError, "boundary rule g64/1"),
        ("chunker.min_size", 127, FormatError, "sizes are out of bounds"),
        ("chunker.min_size", 65536, FormatError, "sizes are out of bounds"),
        ("chunker", json.loads(msgspec.json.encode(SMALL_CHUNKER)), FormatError, "sizes are out of bounds"),
        ("chunker.avg_size", 262144, FormatError, "sizes are out of bounds"),
        ("chunker.max_size", (16 << 20) + 1, FormatError, "sizes are out of bounds"),
        ("chunker.max_size", 10**30, FormatError, "sizes are out of bounds"),
        ("chunker.threshold_strict", 0, FormatError, "thresholds are out of bounds"),
        ("chunker.threshold_strict", 262145, FormatError, "thresholds are out of bounds"),
        ("chunker.threshold_loose", (1 << 22) + 1, FormatError, "thresholds are out of bounds"),
        ("chunker.seed", "AAAA", FormatError, "seed has 32 bytes"),
    ],
)
def test_a_config_that_breaks_a_rule_is_refused(
    path: str, value: object, error: type[FormatError], message: str
) -> None:
    data = format_config.encode_config(CONFIG, MAC_KEY)
    with pytest.raises(error, match=message):
        format_config.decode_config(changed(data, path, value))


def test_a_newer_config_is_told_from_a_damaged_one_although_its_fields_differ() -> None:
    data = format_config.encode_config(CONFIG, MAC_KEY)
    newer = changed(changed(data, "chunker", "a word"), "version", 2)
    with pytest.raises(UnknownFeatureError, match="version 2"):
        format_config.decode_config(newer)
    needing = changed(changed(data, "chunker", "a word"), "mandatory_features", ["words"])
    with pytest.raises(UnknownFeatureError, match="mandatory feature words"):
        format_config.decode_config(needing)


def test_a_config_that_could_not_be_read_again_is_not_written() -> None:
    for config in (
        msgspec.structs.replace(CONFIG, encryption="rot13"),
        msgspec.structs.replace(CONFIG, chunker=SMALL_CHUNKER),
        msgspec.structs.replace(CONFIG, chunker=ChunkerConfig("g32s2/1", 2 << 20, 8 << 20, 32 << 20, 128, 2048)),
    ):
        with pytest.raises(FormatError):
            format_config.encode_config(config, MAC_KEY)


def test_unknown_optional_features_and_fields_are_ignored() -> None:
    data = format_config.encode_config(CONFIG, MAC_KEY)
    later = changed(changed(data, "optional_features", ["x"]), "colour", {"deep": [1, 2]})
    assert format_config.decode_config(later).optional_features == ("x",)


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"null\n", b"[]\n", b"{}\n", b"\xff\n", b"[" * 60_000, b'{"version":2}\n']
)
def test_what_is_no_config_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        format_config.decode_config(data)


def test_a_config_over_its_limit_is_refused() -> None:
    data = format_config.encode_config(CONFIG, MAC_KEY)
    with pytest.raises(FormatError, match="larger than its limit"):
        format_config.decode_config(data + bytes((1 << 16) - len(data) + 1))


def test_a_config_with_any_byte_changed_is_not_authentic() -> None:
    data = format_config.encode_config(CONFIG, MAC_KEY)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 4
        with pytest.raises(AuthenticationError):
            format_config.authenticate_config(bytes(damaged), MAC_KEY)
    for other in (data[:-1], data + b"\n", data.replace(b"\n", b""), b""):
        with pytest.raises(AuthenticationError):
            format_config.authenticate_config(other, MAC_KEY)
    with pytest.raises(AuthenticationError):
        format_config.authenticate_config(data, bytes(32))


def test_sub_keys_differ_by_use_and_by_master_key() -> None:
    contexts = [value for name, value in vars(format_keys).items() if name.startswith("CONTEXT_")]
    assert len(contexts) == len(set(contexts)) == 5
    derived = {
        format_keys.derive_key(master, context) for context in contexts for master in (bytes(32), bytes(31) + b"1")
    }
    assert len(derived) == 10
    assert all(len(key) == 32 for key in derived)


@pytest.mark.parametrize(
    "key", [KEY, KeyObject(1, "keyfile", bytes(40)), KeyObject(1, "keyfile", bytes(40), label="ü")]
)
def test_a_key_object_comes_back(key: KeyObject) -> None:
    assert format_keys.decode_key(format_keys.encode_key(key)) == key


@pytest.mark.parametrize(
    ("path", "value", "error"),
    [
        ("version", 2, UnknownFeatureError),
        ("kdf", "scrypt", UnknownFeatureError),
        ("version", "1", FormatError),
        ("wrapped", "AAAA", FormatError),
        ("wrapped", "?", FormatError),
        ("wrapped", ..., FormatError),
        ("salt", "AAAA", FormatError),
        ("salt", "A" * 88, FormatError),
        ("passes", 0, FormatError),
        ("passes", 17, FormatError),
        ("lanes", 0, FormatError),
        ("lanes", 65, FormatError),
        ("memory_kib", 15, FormatError),
        ("memory_kib", 1024 * 1024 + 1, FormatError),
        ("memory_kib", -1, FormatError),
        ("memory_kib", 10**40, FormatError),
        ("created_ns", 2**63, FormatError),
        ("label", 5, FormatError),
    ],
)
def test_a_key_object_that_breaks_a_rule_is_refused(path: str, value: object, error: type[FormatError]) -> None:
    data = format_keys.encode_key(KEY)
    with pytest.raises(FormatError) as raised:
        format_keys.decode_key(changed(data, path, value))
    assert type(raised.value) is error


def test_a_key_object_over_its_limit_is_refused() -> None:
    with pytest.raises(FormatError, match="larger than its limit"):
        format_keys.decode_key(format_keys.encode_key(KEY) + b" " * (1 << 16))


def test_a_later_field_of_a_key_object_is_ignored() -> None:
    assert format_keys.decode_key(changed(format_keys.encode_key(KEY), "colour", [1])) == KEY


def test_the_password_and_the_key_file_open_the_master_key_and_nothing_else_does() -> None:
    master = bytes(range(32))
    for right, wrong in (
        (format_keys.key_from_password(b"right", KEY), format_keys.key_from_password(b"wrong", KEY)),
        (format_keys.key_from_file(bytes(32)), format_keys.key_from_file(bytes(31) + b"\1")),
    ):
        wrapped = format_keys.wrap_key(right, master)
        assert len(wrapped) == 40
        assert format_keys.unwrap_key(right, wrapped) == master
        with pytest.raises(AuthenticationError):
            format_keys.unwrap_key(wrong, wrapped)


@pytest.mark.parametrize("size", [0, 1, 24, 39, 41, 48])
def test_a_wrapped_key_of_another_length_does_not_open(size: int) -> None:
    with pytest.raises(AuthenticationError):
        format_keys.unwrap_key(bytes(32), bytes(size))
