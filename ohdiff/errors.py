"""Every error class of ohdiff and the exit code it maps to.

Errors carry data (what, which object or path, a hint what to do next); only the cli makes a sentence of
them. An integrity error is never retried and never softened to a warning.
"""

from __future__ import annotations

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_PARTIAL = 3
EXIT_NO_REPOSITORY = 10
EXIT_LOCKED = 11
EXIT_WRONG_KEY = 12
EXIT_NO_SNAPSHOT = 13
EXIT_INTEGRITY = 20
EXIT_STORAGE = 30
EXIT_DEVICE = 40
EXIT_INTERRUPTED = 130


class OhdiffError(Exception):
    """Base of all errors that a user can meet.

    Parameters
    ----------
    message : what happened, naming the path or object.
    hint : what the user can do next, or "".
    item : the path or object concerned, or "".
    during : what was being done to it, or "".
    """

    exit_code = EXIT_FAILED

    def __init__(self, message: str, *, hint: str = "", item: str = "", during: str = "") -> None:
        super().__init__(message)
        self.during = during
        self.message = message
        self.hint = hint
        self.item = item


class UsageError(OhdiffError):
    """The command or call was given something it cannot work with."""

    exit_code = EXIT_USAGE


class RepositoryError(OhdiffError):
    """The repository cannot be used as asked."""


class NoRepositoryError(RepositoryError):
    """There is no repository at this place."""

    exit_code = EXIT_NO_REPOSITORY


class RepositoryExistsError(RepositoryError):
    """A repository is already there; nothing was changed."""


class UnsupportedFormatError(RepositoryError):
    """The repository needs a feature that this version does not know; nothing was written."""


class WrongKeyError(RepositoryError):
    """No key of the repository opens with this password or key file."""

    exit_code = EXIT_WRONG_KEY


class NoSnapshotError(RepositoryError):
    """No snapshot, or more than one, fits the selection."""

    exit_code = EXIT_NO_SNAPSHOT


class IntegrityError(OhdiffError):
    """Stored bytes are not what was promised."""

    exit_code = EXIT_INTEGRITY


class StorageError(OhdiffError):
    """Storage failed.

    Parameters
    ----------
    can_retry : whether the same call may succeed later.
    """

    exit_code = EXIT_STORAGE

    def __init__(self, message: str, *, can_retry: bool = False, hint: str = "", item: str = "") -> None:
        super().__init__(message, hint=hint, item=item)
        self.can_retry = can_retry


class ObjectMissingError(StorageError):
    """An object is not in storage."""


class DeviceError(OhdiffError):
    """A demanded engine, kernel or device cannot run."""

    exit_code = EXIT_DEVICE


class SourceError(OhdiffError):
    """One source entry could not be read; collected, the snapshot still commits with exit code 3."""

    exit_code = EXIT_PARTIAL


class TargetError(OhdiffError):
    """One entry could not be restored; collected, the others still are."""


class InterruptedByUserError(OhdiffError):
    """The user stopped the command; what was committed stays."""

    exit_code = EXIT_INTERRUPTED
