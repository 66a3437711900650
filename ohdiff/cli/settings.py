"""What the flags that all commands share say; they may stand before or after the command."""

from __future__ import annotations

from dataclasses import dataclass

import click


@dataclass(slots=True)
class Settings:
    """Shared flags as given; None where the environment or a default decides."""

    repository: str | None = None
    password_file: str | None = None
    key_file: str | None = None
    is_dry_run: bool = False
    is_json: bool = False
    is_quiet: bool = False
    verbosity: int = 0
    command: str = ""


def settings_of(context: click.Context) -> Settings:
    """The settings of the whole command line."""
    return context.find_root().ensure_object(Settings)
