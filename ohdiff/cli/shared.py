"""Decorators for the options that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ohdiff.errors import UsageError

from .output import Output, open_output
from .settings import settings_of

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Decorator = Callable[[_Function], _Function]


def _store(field: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """Keep what was given; what was not given must not undo the same flag before the command."""

    def callback(context: click.Context, _: click.Parameter, value: Any) -> None:
        if value:
            setattr(settings_of(context), field, value)

    return callback


def _add_verbosity(context: click.Context, _: click.Parameter, value: int) -> None:
    settings_of(context).verbosity += value


def _shared_option(field: str, *names: str, **attributes: Any) -> Callable[[_Function], _Function]:
    return click.option(*names, f"shared_{field}", expose_value=False, callback=_store(field), **attributes)


_OPTIONS: list[Callable[[Any], Any]] = [
    _shared_option(
        "repository",
        "-r",
        "--repo",
        metavar="URL",
        help="Repository: a folder, or local:PATH, file:///PATH. [env: OHDIFF_REPOSITORY]",
    ),
    _shared_option("password_file", "--password-file", metavar="FILE", help="Read the password from the first line."),
    _shared_option("key_file", "--key-file", metavar="FILE", help="Open the repository with a key file."),
    _shared_option("is_json", "--json", is_flag=True, help="One JSON object a line on standard output."),
    click.option(
        "-v",
        "--verbose",
        "shared_verbosity",
        count=True,
        expose_value=False,
        callback=_add_verbosity,
        help="Say more; twice for even more.",
    ),
    _shared_option("is_quiet", "-q", "--quiet", is_flag=True, help="Say nothing but results and errors."),
]
_DRY_RUN = _shared_option("is_dry_run", "-n", "--dry-run", is_flag=True, help="Only say what would be done.")


def shared_options(function: Any, *, dry_run: bool) -> Any:
    """Add the shared flags to a command or group."""
    options = [*_OPTIONS, _DRY_RUN] if dry_run else _OPTIONS
    for option in reversed(options):
        function = option(function)
    return function


def shared(*, dry_run: bool = False) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Give a command the shared flags, and its function an Output as first argument.

    Parameters
    ----------
    dry_run : whether the command knows --dry-run; for any other it is an error, lest it acts in earnest.
    """

    def decorate(function: Callable[..., int | None]) -> Callable[..., int | None]:
        @click.pass_context
        @functools.wraps(function)
        def run(context: click.Context, *args: Any, **kwargs: Any) -> int | None:
            settings = settings_of(context)
            settings.command = context.command.name or ""
            if settings.is_dry_run and not dry_run:
                raise UsageError(f"{settings.command} has no dry run", hint="leave out --dry-run")
            with open_output(settings) as output:
                return function(output, *args, **kwargs)

        decorated: Callable[..., int | None] = shared_options(run, dry_run=dry_run)
        return decorated

    return decorate


def filter_options(function: Any) -> Any:
    """Add --host, --tag and --path, which limit the snapshots that count."""
    for option in (
        click.option("--path", "paths", multiple=True, metavar="PATH", help="Only snapshots of this path."),
        click.option("--tag", "tags", multiple=True, metavar="TAG", help="Only snapshots with this tag."),
        click.option("--host", "hosts", multiple=True, metavar="HOST", help="Only snapshots of this host."),
    ):
        function = option(function)
    return function


def engine_options(function: Any) -> Any:
    """Add --engine and --kernel; what is named is a demand, and an error where it cannot run."""
    function = click.option(
        "--kernel",
        envvar="OHDIFF_KERNEL",
        show_envvar=True,
        default="auto",
        metavar="NAME",
        help="Use this kernel of the engine: see ohdiff devices.",
    )(function)
    return click.option(
        "--engine",
        "engine_name",
        envvar="OHDIFF_ENGINE",
        show_envvar=True,
        default="auto",
        show_default=True,
        metavar="NAME",
        help="What cuts and hashes: auto, cpu or cuda.",
    )(function)


__all__ = ["Output", "engine_options", "filter_options", "shared", "shared_options"]
