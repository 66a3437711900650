"""The log of decisions, and its replay: what was seen as changes since the last view, and what was decided upon it.

One JSON object a line. The first names the settings that build the policy; each other holds the time, the change of
the view, the hash of the whole view and the decision. The policies' memory is in no line: it follows from decisions,
and the hashes hold it. A replay that gives the same bytes has made the same decisions from the same views.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ohdiff.errors import UsageError

from .core import Decision, View, canonical, view_hash
from .policies.compose import PolicySettings, build_policy

LOG_VERSION = 1
_SEEN_FIELDS = ("jobs", "devices", "co_runners", "host")


@dataclass(frozen=True, slots=True)
class LogHead:
    """The first line: the version of this form, which driver wrote it, and the policy's settings."""

    version: int
    driver: str
    settings: PolicySettings


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a replay went another way; `expected` stands in the log."""

    line: int
    expected: bytes
    found: bytes


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay came to: how many decisions were the same, and the first that was not."""

    decisions: int
    driver: str
    difference: Difference | None


class DecisionLog:
    """Writes a run's decisions.

    Parameters
    ----------
    write : takes one line at a time, with its end.
    settings : what the policy was built from.
    driver : who runs it: "simulator", "cuda", ...
    """

    def __init__(self, write: Callable[[bytes], object], settings: PolicySettings, driver: str) -> None:
        self._write = write
        self._last: dict[str, Any] = _seen(View())
        write(canonical(LogHead(LOG_VERSION, driver, settings)) + b"\n")

    def record(self, now_ns: int, view: View, decision: Decision) -> None:
        """Write one decision, with what has changed since the last."""
        seen = _seen(view)
        change = _change(self._last, seen)
        self._last = seen
        self._write(_line(now_ns, {} if change is None else change, view, decision))


def replay(lines: Iterable[bytes]) -> Replay:
    """Make a log's decisions again.

    Parameters
    ----------
    lines : of the log, with their ends; a last line without one was being written when the run died, and is left out.

    Raises
    ------
    UsageError : this is no decision log of this version.
    """
    numbered = enumerate(lines, 1)
    head = _head(next((line for _, line in numbered), b""))
    policy = build_policy(head.settings)
    view, seen, decisions = View(), _seen(View()), 0
    for number, line in numbered:
        if not line.endswith(b"\n"):
            break
        now_ns, change = _parsed(number, line)
        seen = _applied_at(number, seen, change)
        view = replace(_view(number, seen), memory=view.memory)
        decision = policy.decide(now_ns, view)
        again = _line(now_ns, change, view, decision)
        if again != line:
            return Replay(decisions, head.driver, Difference(number, line, again))
        view = replace(view, memory=decision.memory)
        decisions += 1
    return Replay(decisions, head.driver, None)


def _line(now_ns: int, change: Any, view: View, decision: Decision) -> bytes:
    told = replace(decision, memory=())
    return canonical({"t": now_ns, "change": change, "hash": view_hash(view), "decision": told}) + b"\n"


def _seen(view: View) -> dict[str, Any]:
    builtins = msgspec.to_builtins(view)
    return {name: builtins[name] for name in _SEEN_FIELDS}


def _change(old: Any, new: Any) -> Any:
    """None for no change, {key or index: change} for one inside, [value] for another value."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        inside = {key: _change(old[key], new[key]) for key in new}
    elif isinstance(old, list | tuple) and isinstance(new, list | tuple) and len(old) == len(new):
        inside = {str(index): _change(*pair) for index, pair in enumerate(zip(old, new, strict=True))}
    else:
        return None if old == new else [new]
    return {key: change for key, change in inside.items() if change is not None} or None


def _applied_at(number: int, seen: dict[str, Any], change: Any) -> dict[str, Any]:
    try:
        applied: dict[str, Any] = _applied(seen, change)
    except (TypeError, KeyError, IndexError) as error:
        raise UsageError(f"line {number} of the log is damaged", hint="it changes what was not seen") from error
    return applied


def _applied(old: Any, change: Any) -> Any:
    if isinstance(change, list):
        return change[0]
    if isinstance(old, dict):
        return {key: _applied(value, change[key]) if key in change else value for key, value in old.items()}
    return [_applied(value, change[str(index)]) if str(index) in change else value for index, value in enumerate(old)]


def _head(line: bytes) -> LogHead:
    try:
        head = msgspec.json.decode(line, type=LogHead)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError("this is not a log of decisions", hint=str(error)) from error
    if head.version != LOG_VERSION:
        raise UsageError(f"this log has version {head.version}, and only {LOG_VERSION} is known")
    return head


def _parsed(number: int, line: bytes) -> tuple[int, Any]:
    try:
        record = msgspec.json.decode(line, type=dict[str, Any])
        return int(record["t"]), record["change"]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"line {number} of the log is damaged", hint=str(error)) from error


def _view(number: int, seen: dict[str, Any]) -> View:
    try:
        return msgspec.convert(seen, View)
    except msgspec.ValidationError as error:
        raise UsageError(f"line {number} of the log shows no view", hint=str(error)) from error
