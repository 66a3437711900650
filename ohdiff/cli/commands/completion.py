"""ohdiff completion: a shell's completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from ..shared import Output, shared

_VARIABLE = "_OHDIFF_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@shared()
def completion(output: Output, shell: str) -> None:
    """Print a shell's completion script.

    \b
    bash: ohdiff completion bash > ~/.local/share/bash-completion/completions/ohdiff
    zsh:  ohdiff completion zsh > "${fpath[1]}/_ohdiff"
    fish: ohdiff completion fish > ~/.config/fish/completions/ohdiff.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    maker = kind(click.Command("ohdiff"), {}, "ohdiff", _VARIABLE)
    # The script itself, not `source()`, which starts bash to look at its version.
    script = maker.source_template % maker.source_vars()
    output.record("completion", shell=shell, script=script)
    output.line(script.rstrip("\n"))
