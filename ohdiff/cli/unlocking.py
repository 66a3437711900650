"""Where a password or key file comes from: flags, the environment, or a prompt; never the command line itself."""

from __future__ import annotations

import base64
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from typing import Final

from ohdiff.errors import OhdiffError, UsageError, WrongKeyError
from ohdiff.operations.opening import parse_key_file
from ohdiff.repository.keys import KeyFile, Password, Unlock, generate_key_file

from .environment import variable
from .output import Output

_SECRET_SIZE_BYTES_MAX: Final = 1 << 16
_SOURCES: Final = ("PASSWORD", "PASSWORD_FILE", "PASSWORD_COMMAND", "PASSWORD_FD", "KEY_FILE")


def given_unlock(output: Output) -> Unlock | None:
    """The password or key file that flags or the environment name, or None."""
    settings = output.settings
    if settings.password_file and settings.key_file:
        raise UsageError("both --password-file and --key-file were given", hint="give one")
    if settings.password_file:
        return password_of_file(Path(settings.password_file), output)
    if settings.key_file:
        return read_key_file(Path(settings.key_file), output)
    return _unlock_of_environment(output)


def asked_password(prompt: str, *, twice: bool = False) -> Password | None:
    """A password typed on the terminal, or None where there is none."""
    if not sys.stdin.isatty():
        return None
    import click

    typed: str = click.prompt(prompt, hide_input=True, confirmation_prompt=twice, err=True)
    return _password(typed.encode(errors="surrogateescape"), "the typed password")


def read_key_file(path: Path, output: Output) -> KeyFile:
    """The key in a file; warns when others can read it."""
    data = _read(path, "key file")
    _warn_if_public(path, output)
    try:
        return parse_key_file(data)
    except UsageError as error:
        raise UsageError(
            f"{path} is not a key file", hint="a key file is a line of base64 that stands for 32 bytes", item=str(path)
        ) from error


def key_file_text(key: KeyFile) -> str:
    """What stands in a key file."""
    return f"# ohdiff key file: whoever has it can read the repository; without it nobody can.\n{_base64(key.secret)}\n"


def write_key_file(path: Path, key: KeyFile) -> None:
    """Make a new key file that only its owner can read; it is durable on return."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise UsageError(f"{path} exists; a key file is never overwritten", item=str(path)) from error
    with os.fdopen(fd, "w") as file:
        file.write(key_file_text(key))
        file.flush()
        os.fsync(file.fileno())


def read_or_make_key_file(path: Path, output: Output) -> KeyFile:
    """The key in a file that is made if there is none."""
    if path.exists():
        return read_key_file(path, output)
    key = generate_key_file()
    write_key_file(path, key)
    return key


def no_password() -> WrongKeyError:
    """What to say when nothing opens the repository and nobody can be asked."""
    return WrongKeyError(
        "the repository is encrypted, and no password or key file was given",
        hint="use --password-file, --key-file, OHDIFF_PASSWORD_FILE, OHDIFF_PASSWORD_COMMAND or OHDIFF_KEY_FILE",
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _unlock_of_environment(output: Output) -> Unlock | None:
    found = [name for name in _SOURCES if variable(name) is not None]
    if len(found) > 1:
        names = " and ".join(f"OHDIFF_{name}" for name in found)
        raise UsageError(f"{names} are set together", hint="set only one of them")
    if not found:
        return None
    name, value = found[0], variable(found[0]) or ""
    if name == "PASSWORD":
        return _password(os.fsencode(value), "OHDIFF_PASSWORD")
    if name == "PASSWORD_FILE":
        return password_of_file(Path(value), output)
    if name == "PASSWORD_COMMAND":
        return _password_of_command(value)
    if name == "PASSWORD_FD":
        return _password_of_descriptor(value)
    return read_key_file(Path(value), output)


def _password(data: bytes, source: str) -> Password:
    line = data.split(b"\n", 1)[0].removesuffix(b"\r")
    if not line:
        raise UsageError(f"{source} is empty")
    return Password(line)


def password_of_file(path: Path, output: Output) -> Password:
    """The password on the first line of a file; warns when others can read it."""
    data = _read(path, "password file")
    _warn_if_public(path, output)
    return _password(data, f"the password file {path}")


def _password_of_command(command: str) -> Password:
    try:
        done = subprocess.run(shlex.split(command), stdout=subprocess.PIPE, check=True)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        raise UsageError(f"OHDIFF_PASSWORD_COMMAND failed: {error}") from error
    return _password(done.stdout, "what OHDIFF_PASSWORD_COMMAND printed")


def _password_of_descriptor(text: str) -> Password:
    try:
        with os.fdopen(int(text), "rb") as file:
            return _password(file.read(_SECRET_SIZE_BYTES_MAX), "what OHDIFF_PASSWORD_FD gave")
    except (OSError, ValueError) as error:
        raise UsageError(f"OHDIFF_PASSWORD_FD is {text!r}: {error}", hint="name an open file descriptor") from error


def _read(path: Path, what: str) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_SECRET_SIZE_BYTES_MAX)
    except OSError as error:
        raise OhdiffError(f"the {what} {path} cannot be read: {error.strerror}", item=str(path)) from error


def _warn_if_public(path: Path, output: Output) -> None:
    status = path.stat()
    if stat.S_ISREG(status.st_mode) and status.st_mode & (stat.S_IRGRP | stat.S_IROTH):
        output.warning(f"{path} can be read by others; run: chmod 600 {shlex.quote(str(path))}")
