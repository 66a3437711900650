"""The names of owner ids, as this machine knows them."""

from __future__ import annotations

import grp
import pwd
from collections.abc import Iterable


def owner_names(uids: Iterable[int], gids: Iterable[int]) -> tuple[dict[int, str], dict[int, str]]:
    """Names of users and of groups by id; ids without a name are left out."""
    return _users(uids), _groups(gids)


def _users(uids: Iterable[int]) -> dict[int, str]:
    found = {}
    for uid in uids:
        try:
            found[uid] = pwd.getpwuid(uid).pw_name
        except KeyError:
            continue
    return found


def _groups(gids: Iterable[int]) -> dict[int, str]:
    found = {}
    for gid in gids:
        try:
            found[gid] = grp.getgrgid(gid).gr_name
        except KeyError:
            continue
    return found
