"""The one error that decoders raise on malformed input, and its kin for what is well-formed but unknown."""

from __future__ import annotations


class FormatError(ValueError):
    """Bytes do not follow SPEC.md; the message says which rule is broken."""


class UnknownFeatureError(FormatError):
    """Well-formed, but made with a feature that this version does not know."""


class AuthenticationError(FormatError):
    """A seal does not match: the bytes were damaged, moved, or sealed under another key."""
