"""The paths of a snapshot as a tree of names, so that a walk enters only what leads to them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from ohdiff.errors import UsageError


class Target:
    """Stands in a PathTree where a given path ends: everything from here on is taken."""


TARGET: Final = Target()
PathTree = dict[bytes, "PathTree | Target"]


def resolve_path(path: str | bytes) -> bytes:
    """The absolute path with links resolved: the links in a path that a user names are the user's own."""
    return os.path.realpath(os.fsencode(path))


def path_tree(paths: Sequence[bytes]) -> PathTree | Target:
    """The names that lead to absolute `paths`; TARGET itself if one of them is the root."""
    if not paths:
        raise UsageError("no path was given to snapshot")
    root: PathTree = {}
    for path in paths:
        names = [name for name in path.split(b"/") if name]
        if not names:
            return TARGET
        _insert(root, names)
    return root


def _insert(tree: PathTree, names: list[bytes]) -> None:
    for name in names[:-1]:
        below = tree.setdefault(name, {})
        if isinstance(below, Target):
            return
        tree = below
    tree[names[-1]] = TARGET
