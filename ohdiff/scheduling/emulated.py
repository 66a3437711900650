"""An emulated device: a server process that time-slices real client processes, as a driver does with contexts.

Every client is a context with a queue of units; those with work take turns of one quantum, each turn after a change
costs a switch. So two busy clients take about twice as long each, none is preempted by the other, and a client that is
killed leaves the device to the rest. For tests of leases, kills, stretch and control on real processes and real clocks.

The device has a time line of its own, which waits for the clock but is never pushed back by it: when the system wakes
the server late, units still end when they should have, and the server catches up.

Line protocol on a Unix socket: `NUMBER WORK_NS SUBMITTED_NS` asks for a unit, `NUMBER ENDED_NS OK` tells its end.
"""

from __future__ import annotations

import os
import select
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ohdiff import clock
from ohdiff.errors import DeviceError

from .core import MS, SECOND, US, DeviceKind, Telemetry, Unit, UnitDone

QUANTUM_NS: Final = MS
SWITCH_NS: Final = 20 * US
_RATE_BYTES_PER_S: Final = 1 << 30


@dataclass(slots=True)
class _Pending:
    """A unit that has not ended."""

    number: int
    left_ns: int
    submitted_ns: int


@dataclass(slots=True, eq=False)
class _Context:
    """A client, with its units in order."""

    connection: socket.socket
    units: deque[_Pending] = field(default_factory=deque)
    received: bytes = b""


class EmulatedServer:
    """Time-slices the work of its clients until it is stopped.

    Parameters
    ----------
    path : of the socket.
    quantum_ns, switch_ns : length of a turn, and the cost of going to another client.
    failing_every : each so manyth unit fails, as after a device error; 0 for none.
    """

    def __init__(
        self, path: Path, *, quantum_ns: int = QUANTUM_NS, switch_ns: int = SWITCH_NS, failing_every: int = 0
    ) -> None:
        self._quantum_ns = quantum_ns
        self._switch_ns = switch_ns
        self._failing_every = failing_every
        self._units_ended = 0
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(os.fspath(path))
        self._listener.listen()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._contexts: list[_Context] = []
        self._last: _Context | None = None
        self._at_ns = 0

    def run(self, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Serve."""
        while not is_stopped():
            self._receive(0.0 if self._next() else 0.05)
            context = self._next()
            if context is not None:
                self._turn(context)
        self.close()

    def _next(self) -> _Context | None:
        """The first with work after the one that had the last turn."""
        start = self._contexts.index(self._last) + 1 if self._last in self._contexts else 0
        order = self._contexts[start:] + self._contexts[:start]
        return next((context for context in order if context.units), None)

    def close(self) -> None:
        """Drop all clients."""
        for context in list(self._contexts):
            self._drop(context)
        self._selector.close()
        self._listener.close()

    def _turn(self, context: _Context) -> None:
        """Work on a client's units for one quantum at most, those that come meanwhile among them."""
        at_ns = max(self._at_ns, context.units[0].submitted_ns)
        if self._last is not context:
            at_ns += self._switch_ns
            self._last = context
        end_ns = at_ns + self._quantum_ns
        while context.units and at_ns < end_ns:
            unit = context.units[0]
            part_ns = min(unit.left_ns, end_ns - at_ns)
            at_ns += part_ns
            unit.left_ns -= part_ns
            _wait_until(at_ns)
            if unit.left_ns == 0:
                context.units.popleft()
                self._tell_end(context, unit.number, at_ns)
                self._receive(0.0)
        self._at_ns = at_ns

    def _tell_end(self, context: _Context, number: int, ended_ns: int) -> None:
        self._units_ended += 1
        is_ok = not self._failing_every or self._units_ended % self._failing_every != 0
        try:
            context.connection.sendall(b"%d %d %d\n" % (number, ended_ns, is_ok))
        except OSError:
            self._drop(context)

    def _receive(self, timeout: float) -> None:
        for key, _ in self._selector.select(timeout):
            if key.fileobj is self._listener:
                connection, _ = self._listener.accept()
                context = _Context(connection)
                self._contexts.append(context)
                self._selector.register(connection, selectors.EVENT_READ, context)
            elif isinstance(key.data, _Context):
                self._receive_from(key.data)

    def _receive_from(self, context: _Context) -> None:
        data = b""
        with suppress(OSError):
            data = context.connection.recv(1 << 16)
        if not data:
            self._drop(context)
            return
        *lines, context.received = (context.received + data).split(b"\n")
        for line in lines:
            number, work_ns, submitted_ns = (int(word) for word in line.split())
            context.units.append(_Pending(number, max(1, work_ns), min(submitted_ns, clock.monotonic_ns())))

    def _drop(self, context: _Context) -> None:
        """A client is gone; its work is, too."""
        if context in self._contexts:
            self._contexts.remove(context)
            self._selector.unregister(context.connection)
        context.connection.close()
        context.units.clear()


def serve(path: Path, quantum_ns: int = QUANTUM_NS, switch_ns: int = SWITCH_NS, failing_every: int = 0) -> None:
    """Run a server in this process until it is killed."""
    EmulatedServer(path, quantum_ns=quantum_ns, switch_ns=switch_ns, failing_every=failing_every).run()


class EmulatedDevice:
    """A client of an emulated device, as a Device.

    Parameters
    ----------
    path : the server's socket.
    name : what the device is called.
    """

    kind = DeviceKind.EMULATED

    def __init__(self, path: Path, name: str = "emulated", rate_bytes_per_s: int = _RATE_BYTES_PER_S) -> None:
        self._path = path
        self._connection: socket.socket | None = None
        self._received = b""
        self._in_flight: dict[int, tuple[Unit, int]] = {}
        self.name = name
        self.rate_bytes_per_s = rate_bytes_per_s

    def submit(self, unit: Unit) -> None:
        """Hand a unit over: `expected_ns` of the device's time."""
        now_ns = clock.monotonic_ns()
        try:
            self._connected().sendall(b"%d %d %d\n" % (unit.number, unit.expected_ns, now_ns))
        except OSError as error:
            self.park()
            raise DeviceError(f"{self.name} does not answer: {error.strerror}", item=self.name) from error
        self._in_flight[unit.number] = (unit, now_ns)

    def poll(self) -> tuple[UnitDone, ...]:
        """The units that ended since the last call."""
        connection = self._connection
        if connection is None or not self._in_flight:
            return ()
        try:
            data = connection.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return ()
        except OSError:
            data = b""
        if not data:
            self.park()
            raise DeviceError(f"{self.name} was lost", item=self.name)
        *lines, self._received = (self._received + data).split(b"\n")
        return tuple(self._done(line) for line in lines)

    @property
    def descriptor(self) -> int | None:
        """What can be read from when units have ended; None while nothing is in flight."""
        return self._connection.fileno() if self._connection is not None and self._in_flight else None

    def telemetry(self) -> Telemetry | None:
        """None: it has no counters."""
        return None

    def trim(self, keep_bytes: int) -> int:
        """0: it holds no memory."""
        return 0

    def park(self) -> None:
        """Leave the device; what is in flight is lost."""
        connection, self._connection = self._connection, None
        self._in_flight.clear()
        self._received = b""
        if connection is not None:
            connection.close()

    def _connected(self) -> socket.socket:
        if self._connection is None:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(os.fspath(self._path))
            except OSError:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _done(self, line: bytes) -> UnitDone:
        number, ended_ns, is_ok = (int(word) for word in line.split())
        unit, submitted_ns = self._in_flight.pop(number)
        return UnitDone(unit, submitted_ns, ended_ns, is_ok == 1)


class RealClock:
    """The machine's monotonic clock."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds."""
        return clock.monotonic_ns()

    def wait_until(self, at_ns: int) -> None:
        """Sleep until then."""
        _wait_until(at_ns)


class WakingClock(RealClock):
    """The same clock, of a driver that is woken when a unit of its devices ends.

    Parameters
    ----------
    devices : which.
    """

    def __init__(self, devices: Sequence[EmulatedDevice]) -> None:
        self._devices = devices

    def wait_until(self, at_ns: int) -> None:
        """Sleep until then, or until one of the devices has something to say."""
        descriptors = [each.descriptor for each in self._devices if each.descriptor is not None]
        if descriptors:
            select.select(descriptors, (), (), max(0, at_ns - clock.monotonic_ns()) / SECOND)
        else:
            super().wait_until(at_ns)


def _wait_until(at_ns: int) -> None:
    left_ns = at_ns - clock.monotonic_ns()
    if left_ns > 0:
        threading.Event().wait(left_ns / SECOND)
