"""Hard links: the first name of an inode is restored, the others become links to it once it is whole.

Names belong together when the snapshot has them with the same device and inode and a link count above one. What is
remembered of a group is dropped when its last name has come by.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ohdiff_format.tree import Listing

from .folders import Folder


@dataclass(slots=True, eq=False)
class LinkGroup:
    """The names of one inode.

    Attributes
    ----------
    folder, name : the first of them.
    state : "open" until that is finished.
    waiting : later names, until then.
    """

    folder: Folder
    name: bytes
    state: Literal["open", "good", "failed"] = "open"
    seen: int = 1
    waiting: list[tuple[Folder, Listing, int]] = field(default_factory=list)


class LinkGroups:
    """The groups whose names have not all come by."""

    def __init__(self) -> None:
        self._groups: dict[tuple[int, int], LinkGroup] = {}

    def find(self, listing: Listing, row: int) -> LinkGroup | None:
        """The group that an entry belongs to as a further name; None if it is the first."""
        key = (listing.devices[row], listing.inodes[row])
        group = self._groups.get(key)
        if group is not None:
            group.seen += 1
            if group.seen >= listing.link_counts[row]:
                del self._groups[key]
        return group

    def begin(self, folder: Folder, listing: Listing, row: int) -> LinkGroup:
        """A new group, of which this entry is the first name."""
        group = LinkGroup(folder, listing.names[row])
        self._groups[(listing.devices[row], listing.inodes[row])] = group
        return group
