"""The folder list reads as the architecture: imports point one way, and each room keeps to what it is for."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ROOT / "ohdiff"
FORMAT = ROOT / "repo_format"
MODULES = sorted([*PRODUCT.rglob("*.py"), *(path for path in FORMAT.rglob("*.py") if "reader" not in path.parts)])
LINES_MAX = 500
# Copied into other programs, so it stands on nothing but the standard library.
HINT = PRODUCT / "scheduling" / "hint" / "device_hint.py"

# What each room may import of the project besides itself; `leaf` modules may be imported by all.
LEAVES = {"errors", "clock", "buffers", "breaks", "__init__"}
NATIVE = {"_kernels", "_posix"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "clock": set(),
    "buffers": set(),
    "breaks": {"_posix"},
    "__init__": set(),
    "__main__": {"cli"},
    "filesystem": LEAVES | {"_posix", "ohdiff_format"},
    "storage": LEAVES | {"ohdiff_format"},
    "chunking": LEAVES | {"_kernels", "ohdiff_format"},
    "scheduling": LEAVES,
    "delta": LEAVES | {"_kernels", "ohdiff_format"},
    "repository": LEAVES | {"_kernels", "storage", "ohdiff_format"},
    "operations": LEAVES
    | {"repository", "chunking", "delta", "scheduling", "storage", "filesystem", "ohdiff_format", *NATIVE},
    "cli": LEAVES
    | {"operations", "repository", "chunking", "scheduling", "storage", "filesystem", "ohdiff_format", *NATIVE},
    "ohdiff_format": set(),
}
HEAVY = {"ohdiff._kernels", "ohdiff._posix", "zstandard", "blake3", "cryptography", "msgspec", "rich", "click", "numpy"}


def room_of(path: Path) -> str:
    if path.is_relative_to(FORMAT):
        return "ohdiff_format"
    first = path.relative_to(PRODUCT).parts[0]
    return first.removesuffix(".py")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imported_modules(path: Path) -> Iterator[str]:
    """Absolute dotted names of everything that a module imports, wherever in it."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _package_of(path, node.level) if node.level else []
            module = [*base, *(node.module.split(".") if node.module else [])]
            if node.module is None or module == ["ohdiff"]:
                yield from (".".join([*module, alias.name]) for alias in node.names)
            else:
                yield ".".join(module)


def _package_of(path: Path, level: int) -> list[str]:
    if path.is_relative_to(FORMAT):
        parts = ["ohdiff_format", *path.relative_to(FORMAT).parts[:-1]]
    else:
        parts = ["ohdiff", *path.relative_to(PRODUCT).parts[:-1]]
    return parts[: len(parts) - level + 1]


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for name in imported_modules(path):
        first, _, rest = name.partition(".")
        if first == "ohdiff_format":
            rooms.add(first)
        elif first == "ohdiff":
            room = rest.partition(".")[0]
            rooms.add("__init__" if room.startswith("__") or not room else room)
    return rooms - {room_of(path)}


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def test_there_are_modules_to_look_at() -> None:
    assert len(MODULES) > 50
    assert {room_of(path) for path in MODULES} == set(ALLOWED)


@pytest.mark.parametrize("path", MODULES, ids=names(MODULES))
def test_imports_point_from_the_cli_down(path: Path) -> None:
    assert imported_rooms(path) <= ALLOWED[room_of(path)]


def test_a_forbidden_import_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "PRODUCT", tmp_path)
    (tmp_path / "storage").mkdir()
    for line in (
        "from ohdiff.cli import main",
        "from ..cli.main import main",
        "from .. import cli",
        "import ohdiff.cli",
    ):
        path = tmp_path / "storage" / f"module{abs(hash(line))}.py"
        path.write_text(f"def late():\n    {line}\n")
        assert imported_rooms(path) == {"cli"}, line


@pytest.mark.parametrize("path", MODULES, ids=names(MODULES))
def test_every_module_opens_with_what_it_is_for(path: Path) -> None:
    text = ast.get_docstring(parsed(path))
    assert text
    assert len(text.splitlines()) <= 14


@pytest.mark.parametrize("path", MODULES, ids=names(MODULES))
def test_no_module_is_two_rooms(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LINES_MAX


def calls_of(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


def attributes_of(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Attribute):
            yield ast.unparse(node)


BELOW_CLI = [path for path in MODULES if room_of(path) not in ("cli", "__main__") and path != HINT]


@pytest.mark.parametrize("path", BELOW_CLI, ids=names(BELOW_CLI))
def test_only_the_cli_prints_reads_the_environment_or_exits(path: Path) -> None:
    called = set(calls_of(path))
    assert not called & {"print", "input", "exit", "quit", "sys.exit", "os._exit", "os.getenv", "getpass.getpass"}
    assert not set(attributes_of(path)) & {
        "os.environ",
        "os.environb",
        "sys.stdout",
        "sys.stderr",
        "sys.stdin",
        "sys.argv",
    }
    assert not {name.partition(".")[0] for name in imported_modules(path)} & {"click", "rich", "getpass", "logging"}


@pytest.mark.parametrize("path", MODULES, ids=names(MODULES))
def test_only_the_clock_reads_time(path: Path) -> None:
    if path in (PRODUCT / "clock.py", HINT):
        return
    imported = {name.partition(".")[0] for name in imported_modules(path)}
    assert "time" not in imported
    now = {"datetime.now", "datetime.utcnow", "datetime.today", "date.today", "datetime.datetime.now", "time.time"}
    assert not set(calls_of(path)) & now


def test_the_format_knows_nothing_of_the_product() -> None:
    for path in FORMAT.rglob("*.py"):
        assert not {name for name in imported_modules(path) if name.partition(".")[0] == "ohdiff"}, path


def test_the_independent_reader_shares_nothing_with_the_codecs() -> None:
    readers = list((FORMAT / "reader").rglob("*.py"))
    assert readers
    allowed = {"blake3", "cryptography", "zstandard", *sys.stdlib_module_names}
    for path in readers:
        assert {name.partition(".")[0] for name in imported_modules(path)} <= allowed


@pytest.mark.parametrize("module", ["ohdiff", "ohdiff.errors", "ohdiff.clock"])
def test_importing_the_package_loads_nothing_heavy(module: str) -> None:
    script = f"import sys; before = set(sys.modules); import {module}; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert module in loaded
    assert not {name for name in loaded if name in HEAVY or name.partition(".")[0] in HEAVY}


def test_the_hint_can_be_copied_alone() -> None:
    assert {name.partition(".")[0] for name in imported_modules(HINT)} <= set(sys.stdlib_module_names)


def test_no_name_says_nothing() -> None:
    hollow = {"utils", "util", "helpers", "helper", "common", "manager", "handler", "misc"}
    parts = {part.removesuffix(".py") for path in MODULES for part in path.relative_to(ROOT).parts}
    assert not {part for part in parts if hollow & set(part.split("_"))}
