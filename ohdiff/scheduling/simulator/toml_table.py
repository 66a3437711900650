"""Reads a TOML table strictly: each key is asked for by name, with its bounds; what nobody asked for is an error."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, TypeVar

from ohdiff.errors import UsageError

_Choice = TypeVar("_Choice", bound=StrEnum)


class TomlTable:
    """One table of a file, and where it stands in it.

    Parameters
    ----------
    values : as tomllib gives them.
    place : the table's name in messages, "" for the top.
    """

    def __init__(self, values: dict[str, Any], place: str = "") -> None:
        self._left = dict(values)
        self._place = place

    def has(self, key: str) -> bool:
        """Whether the key is there and has not been asked for yet."""
        return key in self._left

    def number(self, key: str, default: float | None = None, *, least: float = 0.0, most: float = 1e18) -> float:
        """A number within bounds; without a default it must be there."""
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._error(key, f"must be a number, not {_shown(value)}")
        if not least <= value <= most:
            raise self._error(key, f"is {value:g}, and must lie between {least:g} and {most:g}")
        return float(value)

    def whole(self, key: str, default: int | None = None, *, least: int = 0, most: int = 1 << 60) -> int:
        """A whole number within bounds."""
        value = self.number(key, default, least=least, most=most)
        if value != int(value):
            raise self._error(key, f"is {value:g}, and must be whole")
        return int(value)

    def scaled(self, key: str, default: float | None, scale: float, *, least: float = 0.0) -> int:
        """A number in the unit of the key's name, as a whole number of the unit that the simulator uses."""
        return round(self.number(key, default, least=least, most=1e18 / scale) * scale)

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._take(key, default)
        if not isinstance(value, str) or (not value and default != ""):
            raise self._error(key, f"must be a text, not {_shown(value)}")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise self._error(key, f"must be true or false, not {_shown(value)}")
        return value

    def choice(self, key: str, choices: type[_Choice], default: _Choice | None = None) -> _Choice:
        """One of an enumeration's words."""
        word = self.text(key, default)
        if word not in list(choices):
            raise self._error(key, f"is {_shown(word)}, and must be one of: {', '.join(choices)}")
        return choices(word)

    def pairs(self, key: str) -> list[tuple[float, float]]:
        """A list of pairs of numbers."""
        value = self._take(key, None)
        if not isinstance(value, list) or not value or not all(map(_is_pair, value)):
            raise self._error(key, "must be a list of pairs of numbers, like [[0, 50], [60, 0]]")
        return [(float(first), float(second)) for first, second in value]

    def table(self, key: str) -> TomlTable:
        """A table within; empty when it is not there."""
        value = self._left.pop(key, {})
        if not isinstance(value, dict):
            raise self._error(key, "must be a table")
        return TomlTable(value, self._name(key))

    def tables(self, key: str) -> list[TomlTable]:
        """An array of tables; empty when it is not there."""
        value = self._left.pop(key, [])
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise self._error(key, f"must be tables, each under its own [[{self._name(key)}]]")
        return [TomlTable(each, f"{self._name(key)}[{index}]") for index, each in enumerate(value)]

    def finish(self, known: Iterable[str] = ()) -> None:
        """Complain about a key that nobody asked for."""
        for key in self._left:
            fitting = ", ".join(known)
            raise self._error(key, "is not known here", hint=f"known: {fitting}" if fitting else "")

    def error(self, key: str, message: str) -> UsageError:
        """An error about one key, for rules that this class does not know."""
        return self._error(key, message)

    def _take(self, key: str, default: Any) -> Any:
        value = self._left.pop(key, default)
        if value is None:
            raise self._error(key, "is missing")
        return value

    def _name(self, key: str) -> str:
        return f"{self._place}.{key}" if self._place else key

    def _error(self, key: str, message: str, hint: str = "") -> UsageError:
        return UsageError(f"{self._name(key)} {message}", hint=hint, item=self._name(key))


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(each, int | float) and not isinstance(each, bool) for each in value)
    )


def _shown(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()
