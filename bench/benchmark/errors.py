"""The error that both benches end with, in a sentence, before they measure anything."""


class SetupError(Exception):
    """The bench cannot run as asked."""
