"""ohdiff key: the passwords and key files that open a repository."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from ohdiff.errors import RepositoryError, UsageError
from ohdiff.repository.keys import KeyFile, Password, StoredKey, Unlock, add_key, list_keys, remove_key
from ohdiff.repository.repository import Repository

from .. import access, unlocking
from ..shared import Output, shared
from ..text import iso_time, local_time


@click.group("key")
def key() -> None:
    """List, add, remove, export and change keys.

    Every key, be it a password or a key file, opens the whole repository.
    """


@key.command("list")
@shared()
def list_command(output: Output) -> None:
    """List the keys; * marks the one in use."""
    with _encrypted(output) as repository:
        stored = list_keys(repository.storage)
        for each in stored:
            output.record(
                "key",
                id=each.key_id,
                kind=_kind(each),
                label=each.key.label,
                hostname=each.key.host,
                created=iso_time(each.key.created_ns),
                is_current=each.key_id == repository.key_id,
            )
        rows = [
            (
                each.key_id[:8] + ("*" if each.key_id == repository.key_id else ""),
                _kind(each),
                local_time(each.key.created_ns),
                each.key.host,
                each.key.label,
            )
            for each in stored
        ]
        output.table(("ID", "Kind", "Created", "Host", "Label"), rows)


_NEW_PASSWORD_FILE = click.option(
    "--new-password-file", type=click.Path(path_type=Path), metavar="FILE", help="Read the new password from a file."
)


@key.command("add")
@_NEW_PASSWORD_FILE
@click.option(
    "--new-key-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Add the key in this file, which is made if it is not there.",
)
@click.option("--label", default="", metavar="TEXT", help="A word to recognise the key by.")
@shared()
def add_command(output: Output, new_password_file: Path | None, new_key_file: Path | None, label: str) -> None:
    """Add a password (asked for, or out of a file) or a key file."""
    if new_password_file is not None and new_key_file is not None:
        raise UsageError("a key is either a password or a key file", hint="add one after the other")
    with _encrypted(output) as repository:
        if new_key_file is not None:
            unlock: Unlock = unlocking.read_or_make_key_file(new_key_file, output)
        else:
            unlock = _new_password(output, new_password_file)
        key_id = add_key(repository.storage, repository.master_key, unlock, access.describe_key(label))
    output.summary([f"added key {key_id[:8]}"], id=key_id)


@key.command("remove")
@click.argument("prefix", metavar="ID")
@click.option("-y", "--yes", "is_sure", is_flag=True, help="Do not ask, not even for the last key.")
@shared()
def remove_command(output: Output, prefix: str, is_sure: bool) -> None:
    """Remove a key; what it opened before can be opened with the others only."""
    with _encrypted(output) as repository:
        stored = list_keys(repository.storage)
        key_id = _find(stored, prefix)
        is_last = len(stored) == 1
        if is_last and not is_sure:
            _ask_about_last(key_id)
        remove_key(repository.storage, key_id, allow_last=is_last)
    output.summary([f"removed key {key_id[:8]}"], id=key_id)


@key.command("passwd")
@_NEW_PASSWORD_FILE
@shared()
def passwd_command(output: Output, new_password_file: Path | None) -> None:
    """Change the password that is in use: adds the new one, then removes the old one."""
    with _encrypted(output) as repository:
        current = next(each for each in list_keys(repository.storage) if each.key_id == repository.key_id)
        if current.key.kdf != "argon2id":
            raise UsageError("the repository was opened with a key file", hint="use: ohdiff key add, ohdiff key remove")
        unlock = _new_password(output, new_password_file)
        key_id = add_key(repository.storage, repository.master_key, unlock, access.describe_key(current.key.label))
        remove_key(repository.storage, current.key_id)
    output.summary([f"changed the password: key {key_id[:8]} replaces {current.key_id[:8]}"], id=key_id)


@key.command("export")
@click.option("-o", "--output", "target", type=click.Path(path_type=Path), metavar="FILE", help="Write to a new file.")
@shared()
def export_command(output: Output, target: Path | None) -> None:
    """Copy out the key file in use, by default that of the default repository.

    A repository that is opened by password has none: give it one with `ohdiff key add --new-key-file FILE`.
    """
    unlock = unlocking.given_unlock(output)
    if unlock is None and access.named_repository(output) is None and access.default_key_file().exists():
        unlock = unlocking.read_key_file(access.default_key_file(), output)
    if not isinstance(unlock, KeyFile):
        raise UsageError(
            "there is no key file to export",
            hint="make one: ohdiff key add --new-key-file FILE, or name it with --key-file",
        )
    text = unlocking.key_file_text(unlock)
    if target is not None:
        unlocking.write_key_file(target, unlock)
        output.summary([f"copied the key to {target}: keep it where only you can read it"], path=str(target))
    elif output.is_json:
        output.record("key_file", text=text)
    else:
        output.line(text.rstrip("\n"))


@contextmanager
def _encrypted(output: Output) -> Iterator[Repository]:
    with access.opened(output) as opened:
        if opened.repository.config.encryption == "none":
            raise UsageError("this repository is not encrypted: it has no keys")
        yield opened.repository


def _kind(stored: StoredKey) -> str:
    return "password" if stored.key.kdf == "argon2id" else "key file"


def _new_password(output: Output, path: Path | None) -> Password:
    if path is not None:
        return unlocking.password_of_file(path, output)
    password = unlocking.asked_password("new password", twice=True)
    if password is None:
        raise UsageError("no new password was given", hint="use --new-password-file")
    return password


def _find(stored: list[StoredKey], prefix: str) -> str:
    found = [each.key_id for each in stored if each.key_id.startswith(prefix)]
    if len(found) != 1:
        what = f"{len(found)} keys have" if found else "no key has"
        raise UsageError(f"{what} an id beginning with {prefix}", hint="list them with: ohdiff key list")
    return found[0]


def _ask_about_last(key_id: str) -> None:
    plan = f"{key_id[:8]} is the last key: without it nobody can ever open the repository again"
    if not sys.stdin.isatty():
        raise RepositoryError(plan, hint="add another key first, or say --yes")
    click.echo(plan, err=True)
    click.confirm("remove it nevertheless?", abort=True, err=True)
