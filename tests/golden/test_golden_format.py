"""Frozen bytes of the format: encoders still give them, decoders and the independent reader still read them."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import format_repository as golden
import msgspec
import pytest
import zstandard
from blake3 import blake3
from frozen_repository import FOLDER, READER, WRAPPING_KEY, Frozen, object_path, read, write_repository

from ohdiff_format import config, envelope, index, keys, pack, snapshot, tree
from ohdiff_format.blocks import decode_block

ID_KEY = keys.derive_key(golden.MASTER_KEY, keys.CONTEXT_CHUNK_ID)
NOW = golden.NOW_NS
PIECES = [golden.fixed_bytes(f"piece {number}", 300 + number) for number in range(7)]
TEXT = b"some text that compresses, line after line\n" * 20
MORE = b"more text\n" * 50
SPARSE = bytes(65536) + b"\1" * 4096 + bytes(524288 - 69632) + b"\2" * 8192 + bytes((1 << 20) - 532480)

# path -> (type and mode, mtime_ns, what it holds); written out by hand, so that the builder is judged as well.
Expected = tuple[int, int, bytes | int | None]
EXPECTED: dict[bytes, Expected] = {
    b"srv": (0o40755, NOW, None),
    b"srv/all-hole": (0o100640, NOW, bytes(5000)),
    b"srv/bytes-\xff\xfe": (0o100640, NOW, MORE),
    b"srv/device": (0o20666, NOW, 0x103),
    b"srv/directory": (0o42750, -1, None),
    b"srv/directory/leaf": (0o100640, NOW, b""),
    b"srv/empty-directory": (0o41777, 1, None),
    b"srv/empty-file": (0o100640, 0, b""),
    b"srv/fifo": (0o10600, NOW, None),
    b"srv/hard-1": (0o104755, NOW, PIECES[6]),
    b"srv/hard-2": (0o104755, NOW, PIECES[6]),
    b"srv/link": (0o120777, NOW, b"../no/where \xe9\x01"),
    b"srv/list": (0o100640, NOW, b"".join(PIECES[:6])),
    b"srv/multi": (0o100640, NOW, TEXT + MORE + PIECES[0]),
    b"srv/old": (0o100640, -1_500_000_000_000_000_007, b""),
    b"srv/socket": (0o140755, NOW, None),
    b"srv/sparse": (0o100640, NOW, SPARSE),
    b"srv/xattrs": (0o100640, NOW, b""),
    b"srv/zz-new": (0o100600, NOW, b"new"),
}
XATTRS = {"user.empty": b"", "user.ohdiff": bytes(range(256))}


@pytest.fixture(params=golden.ENCRYPTIONS)
def frozen(request: pytest.FixtureRequest) -> Frozen:
    return Frozen(request.param)


def test_single_values_are_still_the_frozen_ones() -> None:
    expected = json.loads((FOLDER / "vectors.json").read_text())
    found = golden.single_values()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert json.loads(json.dumps(found[name])) == value, name


def test_the_codecs_still_build_the_frozen_repository(frozen: Frozen) -> None:
    built = golden.build_repository(frozen.encryption)
    if list(zstandard.ZSTD_VERSION) == frozen.frozen["zstd_version"]:
        assert built == frozen.objects
    # Another zstd may compress to other bytes, which changes names but neither kinds nor what is not compressed.
    assert [name.partition("/")[0] for name in built] == [name.partition("/")[0] for name in frozen.objects]
    assert built["config"] == frozen.objects["config"]
    assert {name for name in built if name.startswith("keys/")} == frozen.of("keys").keys()


def test_objects_are_named_by_the_blake3_of_their_bytes(frozen: Frozen) -> None:
    named = {name: data for name, data in frozen.objects.items() if name != "config"}
    assert len(named) == len(frozen.objects) - 1
    for name, data in named.items():
        assert name.partition("/")[2] == blake3(data).hexdigest()


def test_the_config_reads_and_encodes_to_the_same_bytes(frozen: Frozen) -> None:
    data = frozen.objects["config"]
    mac_key = keys.derive_key(golden.MASTER_KEY, keys.CONTEXT_CONFIG)
    config.authenticate_config(data, mac_key)
    assert config.encode_config(config.decode_config(data), mac_key) == data


def test_each_key_opens_the_master_key_and_encodes_to_the_same_bytes() -> None:
    stored = Frozen("aes-256-gcm").of("keys")
    decoded = [keys.decode_key(data) for data in stored.values()]
    assert [keys.encode_key(key) for key in decoded] == list(stored.values())
    by_kdf = {key.kdf: key for key in decoded}
    stretched = keys.key_from_password(golden.PASSWORD.encode(), by_kdf["argon2id"])
    assert keys.unwrap_key(stretched, by_kdf["argon2id"].wrapped) == golden.MASTER_KEY
    assert keys.unwrap_key(keys.key_from_file(golden.KEY_FILE), by_kdf["keyfile"].wrapped) == golden.MASTER_KEY


def test_index_objects_read_and_encode_to_the_same_bytes(frozen: Frozen) -> None:
    objects = frozen.of("index")
    assert len(objects) == 2
    for data in objects.values():
        sealer, body = frozen.open_body(data, envelope.KIND_INDEX)
        found = index.decode_index(body)
        assert envelope.unpack_plain(index.encode_index(found)) == envelope.unpack_plain(body)
        assert sealer.header + sealer.seal(0, body) == data
        assert {f"packs/{record.pack_id.hex()}" for record in found.packs} <= frozen.objects.keys()


def test_snapshots_read_and_encode_to_the_same_bytes(frozen: Frozen) -> None:
    objects = frozen.of("snapshots")
    assert len(objects) == 2
    for data in objects.values():
        sealer, body = frozen.open_body(data, envelope.KIND_SNAPSHOT)
        found = snapshot.decode_snapshot(body)
        assert envelope.unpack_plain(snapshot.encode_snapshot(found)) == envelope.unpack_plain(body)
        assert sealer.header + sealer.seal(0, body) == data
        assert (found.paths, found.tags, found.users) == ([b"/srv"], ["daily", "häufig"], {1234: "someone"})


def read_pack(frozen: Frozen, data: bytes) -> tuple[envelope.Sealer, pack.Footer, list[bytes]]:
    """A pack's sealer, footer and the plain bytes of each block, from its bytes alone."""
    sealer = envelope.open_sealer(data, envelope.KIND_PACK, frozen.encryption, WRAPPING_KEY)
    footer_end = len(data) - pack.TRAILER_SIZE
    footer_size = pack.decode_trailer(sealer.open(pack.NUMBER_TRAILER, data[footer_end:]), len(data))
    body = sealer.open(pack.NUMBER_FOOTER, data[footer_end - footer_size : footer_end])
    footer = pack.decode_footer(body)
    assert envelope.unpack_plain(pack.encode_footer(footer)) == envelope.unpack_plain(body)
    plain, offset = [], len(sealer.header)
    for number, block in enumerate(footer.blocks):
        payload = sealer.open(number, data[offset : offset + block.sealed_size])
        plain.append(bytes(decode_block(block.codec, payload, block.plain_size)))
        offset += block.sealed_size
    return sealer, footer, plain


def test_packs_read_from_their_end_and_their_blocks_hold_what_the_index_says(frozen: Frozen) -> None:
    records = {}
    for data in frozen.of("index").values():
        found = index.decode_index(frozen.open_body(data, envelope.KIND_INDEX)[1])
        records |= {record.pack_id.hex(): record for record in found.packs}
    assert {f"packs/{name}" for name in records} == frozen.of("packs").keys()
    for name, record in records.items():
        data = frozen.objects[f"packs/{name}"]
        assert len(data) == record.size == pack.padded_size(len(data))
        sealer, footer, blocks = read_pack(frozen, data)
        assert (len(sealer.header), footer.is_metadata) == (record.header_size, record.is_metadata)
        for plain, block, indexed in zip(blocks, footer.blocks, record.blocks, strict=True):
            assert (block.sealed_size, block.codec, block.chunk_sizes) == indexed_shape(indexed)
            assert prefixes_of(plain, block.chunk_sizes) == indexed.chunk_prefixes


def indexed_shape(block: pack.BlockRecord) -> tuple[int, int, list[int]]:
    """What a footer says of a block too."""
    return block.sealed_size, block.codec, block.chunk_sizes


def prefixes_of(plain: bytes, sizes: list[int]) -> bytes:
    """The id prefixes of the chunks in a block."""
    prefixes, start = b"", 0
    for size in sizes:
        prefixes += blake3(plain[start : start + size], key=ID_KEY).digest()[:16]
        start += size
    return prefixes


def test_trees_read_and_encode_to_the_same_bytes(frozen: Frozen) -> None:
    leaves = lists = 0
    for data in frozen.of("packs").values():
        _, footer, blocks = read_pack(frozen, data)
        if not footer.is_metadata:
            continue
        for plain, block in zip(blocks, footer.blocks, strict=True):
            start = 0
            for size in block.chunk_sizes:
                chunk = plain[start : start + size]
                start += size
                # A leaf is an array of 21 items, a content list one of 3.
                if chunk.startswith(b"\x93"):
                    lists += 1
                    assert tree.encode_content(tree.decode_content(chunk)) == chunk
                else:
                    leaves += 1
                    assert tree.encode_listing(tree.decode_listing(chunk)) == chunk
    assert (leaves, lists) == (6, 2)


def test_the_reader_runs_alone_from_any_folder(tmp_path: Path) -> None:
    frozen = Frozen("chacha20-poly1305")
    frozen.write(tmp_path)
    copy = shutil.copy(READER, tmp_path / "reader.py")
    command = [sys.executable, "-I", copy, "repository", "--key-file", "key"]
    whole = subprocess.run([*command, "verify"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (whole.returncode, whole.stdout, whole.stderr) == (0, "3 packs, 2 snapshots, 0 damaged\n", "")
    object_path(tmp_path / "repository", next(iter(frozen.of("packs")))).unlink()
    broken = subprocess.run([*command, "verify"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert broken.returncode == 1
    assert "missing" in broken.stderr
    odd = subprocess.run([*command, "ls", "nothing"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (odd.returncode, odd.stderr) == (1, "reader.py: 0 snapshots fit 'nothing'\n")


@pytest.mark.parametrize("way", ["index", "scan", "scan without index"])
def test_the_reader_restores_the_frozen_tree_exactly(frozen: Frozen, tmp_path: Path, way: str) -> None:
    repository = frozen.write(tmp_path)
    scan = [] if way == "index" else ["--scan-packs"]
    if way == "scan without index":
        shutil.rmtree(repository / "index")
    target = tmp_path / "target"
    done = read(repository, *frozen.options(tmp_path), *scan, "restore", "latest", target)
    assert_restored(target, done.stderr, EXPECTED, is_root=os.geteuid() == 0)


def assert_restored(target: Path, notes: str, expected: dict[bytes, Expected], *, is_root: bool) -> None:
    """The folder holds what is expected, and nothing else."""
    found = {os.fsencode(path.relative_to(target)) for path in target.rglob("*")}
    lacking = {b"srv/device"} - found
    assert found == expected.keys() - lacking
    assert not lacking or "devices are not restored" in notes
    for path in found:
        assert_entry(target / os.fsdecode(path), *expected[path], is_root=is_root)
    first, second = ((target / f"srv/hard-{number}").lstat() for number in (1, 2))
    assert (first.st_ino, first.st_nlink) == (second.st_ino, 2)
    assert (target / "srv/sparse").stat().st_blocks * 512 < (1 << 20) // 2
    assert (target / "srv/all-hole").stat().st_blocks == 0
    assert_xattrs(target / "srv/xattrs", notes)


def assert_entry(path: Path, mode: int, mtime_ns: int, content: object, *, is_root: bool) -> None:
    """One restored entry has its type, mode, owner, time and content."""
    status = path.lstat()
    assert oct(status.st_mode) == oct(mode if is_root else mode & ~0o6000), path
    assert status.st_mtime_ns == mtime_ns, path
    if is_root:
        assert (status.st_uid, status.st_gid) == golden.OWNER, path
    if stat.S_ISREG(mode):
        assert path.read_bytes() == content, path
    elif stat.S_ISLNK(mode):
        assert os.fsencode(path.readlink()) == content
    elif stat.S_ISCHR(mode):
        assert status.st_rdev == content


def assert_xattrs(path: Path, notes: str) -> None:
    """Extended attributes are there, unless the file system was reported to have none."""
    try:
        os.setxattr(path, "user.probe", b"1")
    except OSError:
        assert "could not set user.ohdiff" in notes
        return
    os.removexattr(path, "user.probe")
    assert {name: os.getxattr(path, name) for name in os.listxattr(path) if name.startswith("user.")} == XATTRS


def test_the_reader_restores_the_parent_snapshot_by_the_beginning_of_its_id(tmp_path: Path) -> None:
    frozen = Frozen("none")
    repository = frozen.write(tmp_path)
    lines = read(repository, "list").stdout.splitlines()
    assert len(lines) == 2
    first_id = lines[0].split()[0]
    target = tmp_path / "deep" / "target"
    done = read(repository, "restore", first_id[:10], target)
    older = {path: value for path, value in EXPECTED.items() if path != b"srv/zz-new"}
    assert_restored(target, done.stderr, older, is_root=os.geteuid() == 0)


def test_an_ordinary_user_restores_all_but_owners_and_devices(tmp_path: Path) -> None:
    frozen = Frozen("none")
    repository = frozen.write(tmp_path)
    tmp_path.chmod(0o777)
    # Everything is loaded before root is given up, and paths are relative: another user may not get at either.
    drop = f"import os, sys; sys.path.insert(0, {str(READER.parent)!r}); import ohdiff_reader as reader\n"
    drop += "options, report = reader.parse_arguments(), reader.Report()\n"
    drop += "os.geteuid() or (os.setgroups([]), os.setgid(65534), os.setuid(65534))\n"
    drop += "reader.run(options, report)\nsys.exit(report.damage_count)"
    command = [sys.executable, "-c", drop, repository.name, "restore", "latest", "target"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, cwd=tmp_path)
    target = tmp_path / "target"
    assert done.returncode == 0, done.stderr
    assert "owners are not restored" in done.stderr
    assert "devices are not restored" in done.stderr
    assert done.stderr.count("owners are not restored") == 1
    assert_restored(target, done.stderr, EXPECTED, is_root=False)


def test_the_reader_lists_and_verifies(frozen: Frozen, tmp_path: Path) -> None:
    repository = frozen.write(tmp_path)
    listed = read(repository, *frozen.options(tmp_path), "ls", "latest").stdout
    lines = listed.splitlines()
    assert len(lines) == len(EXPECTED)
    assert any(line.startswith("-rwsr-xr-x") and line.endswith(" /srv/hard-1") for line in lines)
    assert any(line.endswith(r" /srv/link -> ../no/where \xe9\x01") for line in lines)
    assert any(line.endswith(r" /srv/bytes-\xff\xfe") for line in lines)
    verified = read(repository, *frozen.options(tmp_path), "verify").stdout
    assert verified == "3 packs, 2 snapshots, 0 damaged\n"


def test_the_reader_finds_damage_in_every_object(frozen: Frozen, tmp_path: Path) -> None:
    repository = frozen.write(tmp_path)
    for name, data in frozen.objects.items():
        path = object_path(repository, name)
        for position in (0, len(data) // 2, len(data) - 1):
            path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
            done = read(repository, *frozen.options(tmp_path), "verify", code=1)
            assert name.partition("/")[2][:64] in done.stderr
        path.write_bytes(data[:-1])
        read(repository, *frozen.options(tmp_path), "verify", code=1)
        path.write_bytes(data)
    read(repository, *frozen.options(tmp_path), "verify")


def test_the_reader_restores_the_rest_when_a_pack_is_damaged_and_names_what_is_lost(tmp_path: Path) -> None:
    frozen = Frozen("aes-256-gcm")
    repository = frozen.write(tmp_path)
    new_pack = next(name for name, data in frozen.of("packs").items() if b"new" in b"".join(read_pack(frozen, data)[2]))
    path = object_path(repository, new_pack)
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    target = tmp_path / "target"
    done = read(repository, *frozen.options(tmp_path), "restore", "latest", target, code=1)
    lost = {line.split(": ")[1] for line in done.stderr.splitlines() if line.startswith("damaged: ")}
    assert lost == {"/srv/multi", r"/srv/bytes-\xff\xfe"}
    assert not (target / "srv/multi").exists()
    assert (target / "srv/zz-new").read_bytes() == b"new"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "newer format"),
        ({"mandatory_features": ["delta"]}, "newer format"),
        ({"encryption": "rot13"}, "not known to this reader"),
        ({"format": "something"}, "not that of an ohdiff repository"),
        ({"created_ns": 5}, "authentication code"),
    ],
)
def test_the_reader_refuses_a_config_that_it_does_not_know(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    repository = Frozen("none").write(tmp_path)
    line, mac, _ = (repository / "config").read_bytes().split(b"\n")
    changed = json.dumps(json.loads(line) | change, separators=(",", ":")).encode()
    (repository / "config").write_bytes(changed + b"\n" + mac + b"\n")
    assert message in read(repository, "list", code=1).stderr


def test_the_reader_says_what_is_wrong_with_a_secret(tmp_path: Path) -> None:
    encrypted = Frozen("aes-256-gcm").write(tmp_path)
    wrong = tmp_path / "wrong"
    wrong.write_text("no\n")
    assert "no key of the repository opens" in read(encrypted, "--password-file", wrong, "list", code=1).stderr
    assert "give --password-file" in read(encrypted, "list", code=1).stderr
    assert "does not hold a key" in read(encrypted, "--key-file", wrong, "list", code=1).stderr
    (tmp_path / "raw").write_bytes(golden.KEY_FILE)
    assert len(read(encrypted, "--key-file", tmp_path / "raw", "list").stdout.splitlines()) == 2
    plain = tmp_path / "plain"
    write_repository(Frozen("none").objects, plain)
    assert "is not encrypted" in read(plain, "--password-file", wrong, "list", code=1).stderr


def test_the_reader_passes_over_a_stray_key_that_opens_another_master_key(tmp_path: Path) -> None:
    frozen = Frozen("aes-256-gcm")
    repository = frozen.write(tmp_path)
    stretched = keys.key_from_password(golden.PASSWORD.encode(), golden.password_key())
    wrapped = keys.wrap_key(stretched, bytes(32))
    strays = (msgspec.structs.replace(golden.password_key(), wrapped=wrapped, label=str(number)) for number in range(8))
    for data in map(keys.encode_key, strays):
        (repository / "keys" / blake3(data).hexdigest()).write_bytes(data)
    own = next(path for path in (repository / "keys").iterdir() if b'"password"' in path.read_bytes())
    assert own != min((repository / "keys").iterdir())
    assert len(read(repository, *frozen.options(tmp_path), "list").stdout.splitlines()) == 2
    own.unlink()
    done = read(repository, *frozen.options(tmp_path), "list", code=1)
    assert "config does not match its authentication code" in done.stderr


def test_the_reader_says_what_is_wrong_with_its_arguments(tmp_path: Path) -> None:
    repository = Frozen("none").write(tmp_path)
    assert "is not a repository" in read(tmp_path, "list", code=1).stderr
    assert "0 snapshots fit" in read(repository, "ls", "ffffffffff", code=1).stderr
    assert "2 snapshots fit" in read(repository, "ls", "", code=1).stderr
    assert "is not empty" in read(repository, "restore", "latest", tmp_path, code=1).stderr


def test_the_reader_refuses_an_unencrypted_object_in_an_encrypted_repository(tmp_path: Path) -> None:
    frozen = Frozen("aes-256-gcm")
    repository = frozen.write(tmp_path)
    forged = golden.RepositoryBuilder("none")
    golden.add_snapshot(forged, tree.EMPTY_CONTENT, NOW + 10**18, b"")
    for name, data in forged.objects.items():
        object_path(repository, name).write_bytes(data)
    done = read(repository, *frozen.options(tmp_path), "list", code=1)
    assert len(done.stdout.splitlines()) == 2
    assert "cipher is not the repository's" in done.stderr


def hostile_repository(root: tree.Content, builder: golden.RepositoryBuilder, folder: Path) -> Path:
    """A repository whose one snapshot has this root."""
    builder.add_config()
    builder.add_pack([builder.metadata], level=3, is_metadata=True)
    builder.add_sealed("index", envelope.KIND_INDEX, index.encode_index(index.Index(builder.records)))
    golden.add_snapshot(builder, root, NOW, b"")
    write_repository(builder.objects, folder)
    return folder


@pytest.mark.parametrize(
    "names", [[b".."], [b"."], [b""], [b"/etc"], [b"../evil"], [b"a\0b"], [b"a", b"a"], [b"b", b"a"]]
)
@pytest.mark.parametrize("leaves", [1, 2])
def test_the_reader_writes_nothing_under_a_hostile_name(tmp_path: Path, names: list[bytes], leaves: int) -> None:
    builder = golden.RepositoryBuilder("none")
    rows = [golden.Row(name, stat.S_IFDIR | 0o755) for name in names]
    parts = [rows] if leaves == 1 else [[row] for row in rows]
    repository = hostile_repository(builder.directory(*parts), builder, tmp_path / "repository")
    before = set(tmp_path.iterdir())
    done = read(repository, "restore", "latest", tmp_path / "target", code=1)
    assert "a hostile name" in done.stderr or "do not ascend" in done.stderr
    assert set(tmp_path.iterdir()) - before == {tmp_path / "target"}
    assert len(list((tmp_path / "target").iterdir())) <= (leaves - 1) * (len(names) - 1)
    assert "a hostile name" in done.stderr or "do not ascend" in read(repository, "verify", code=1).stderr


def test_a_symlink_cannot_be_followed_by_a_directory_of_the_same_name(tmp_path: Path) -> None:
    builder = golden.RepositoryBuilder("none")
    outside = tmp_path / "outside"
    outside.mkdir()
    link = golden.Row(b"x", stat.S_IFLNK | 0o777, target=bytes(outside))
    folder = golden.Row(b"x", stat.S_IFDIR | 0o755, builder.directory([golden.Row(b"evil", stat.S_IFREG | 0o644)]))
    repository = hostile_repository(builder.directory([link], [folder]), builder, tmp_path / "repository")
    read(repository, "restore", "latest", tmp_path / "target", code=1)
    assert not list(outside.iterdir())


def nested_repository(folder: Path, name: bytes, depth: int) -> Path:
    """A repository of directories in each other, with two names of one file in the innermost."""
    builder = golden.RepositoryBuilder("none")
    files = [golden.Row(hard, stat.S_IFREG | 0o600, inode=7, links=2) for hard in (b"hard-a", b"hard-b")]
    content = builder.directory(files)
    for _ in range(depth):
        content = builder.directory([golden.Row(name, stat.S_IFDIR | 0o700, content)])
    return hostile_repository(content, builder, folder)


def test_the_reader_restores_paths_longer_than_the_system_takes_at_once(tmp_path: Path) -> None:
    name = b"n" * 250
    repository = nested_repository(tmp_path / "repository", name, 20)
    read(repository, "restore", "latest", tmp_path / "target")
    folder = os.open(tmp_path / "target", os.O_RDONLY)
    for _ in range(20):
        deeper = os.open(name, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = deeper
    first, second = (os.stat(hard, dir_fd=folder) for hard in ("hard-a", "hard-b"))
    assert (first.st_ino, first.st_nlink) == (second.st_ino, 2)
    os.close(folder)


def test_the_reader_walks_trees_deeper_than_python_recurses(tmp_path: Path) -> None:
    depth = 2 * sys.getrecursionlimit()
    repository = nested_repository(tmp_path / "repository", b"d", depth)
    assert len(read(repository, "ls", "latest").stdout.splitlines()) == depth + 2
    read(repository, "verify")
