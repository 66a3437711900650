"""A co-runner that serves a language model: iterations over a batch that requests join and leave as they go.

Continuous batching as in Orca (OSDI'22) with chunked prefill: an iteration takes a fixed time, a part for each token of
prefill, at most a chunk of them, and a part for each sequence that decodes. Requests come from a trace or a generator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil

from .co_runners import NEVER_NS, CoRunnerModel, CoRunnerName
from .traces import Request


@dataclass(frozen=True, slots=True)
class BatchingShape:
    """The cost of an iteration, alone on the device, and the bounds of a batch."""

    iteration_ns: int
    prefill_token_ns: int
    decode_sequence_ns: int
    pause_ns: int  # on the host, between two iterations
    chunk_tokens: int
    batch_max: int


class _Prefill:
    """A request whose context is being read."""

    __slots__ = ("left", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.left = request.context_tokens


class BatchingServer(CoRunnerModel):
    """Runs iterations while there is any request; `started_ns` is when the last one began."""

    def __init__(self, who: CoRunnerName, shape: BatchingShape, requests: Iterator[Request]) -> None:
        super().__init__(who)
        self._latencies: list[int] = []
        self._first_tokens: list[int] = []
        self.figures = {"latency": self._latencies, "first token": self._first_tokens}
        self._shape = shape
        self._requests = requests
        self._coming = next(requests, None)
        self._prefill: deque[_Prefill] = deque()
        # Sequences that decode, by the iteration in which they end; each ends with the last of its tokens.
        self._decoding: list[tuple[int, int]] = []
        self._first: list[Request] = []
        self._iteration = 0
        self.started_ns = 0
        self.next_ns = NEVER_NS if self._coming is None else self._coming.arrived_ns

    def begin(self, now_ns: int) -> float:
        """Take in what has come, and start an iteration."""
        self._admit(now_ns)
        shape = self._shape
        decoding = len(self._decoding)
        tokens = 0
        prefill = self._prefill
        while prefill and tokens < shape.chunk_tokens:
            head = prefill[0]
            taken = min(head.left, shape.chunk_tokens - tokens)
            head.left -= taken
            tokens += taken
            if head.left == 0:
                self._first.append(prefill.popleft().request)
        self._iteration += 1
        self.started_ns = now_ns
        self.next_ns = NEVER_NS
        self.demand = self.demands[0]
        return shape.iteration_ns + shape.prefill_token_ns * tokens + shape.decode_sequence_ns * decoding

    def end(self, now_ns: int) -> None:
        """Hand out tokens; those that got their last one leave."""
        decoding = self._decoding
        if self._first:
            for request in self._first:
                self._first_tokens.append(now_ns - request.arrived_ns)
                heappush(decoding, (self._iteration + request.generated_tokens - 1, request.arrived_ns))
            self._first.clear()
        while decoding and decoding[0][0] <= self._iteration:
            self._latencies.append(now_ns - heappop(decoding)[1])
        self.steps += 1
        self.step_total_ns += now_ns - self.started_ns
        if decoding or self._prefill:
            self.next_ns = now_ns + self._shape.pause_ns
        elif self._coming is None:
            self.next_ns = NEVER_NS
        else:
            self.next_ns = max(now_ns, self._coming.arrived_ns)

    def run_alone(self, now_ns: int, left: float, until_ns: int, quiet_ns: int) -> tuple[int, float, int]:
        """Go through phases while nobody else is on the device; the same arithmetic as the engine's, without its loop.

        Parameters
        ----------
        now_ns, left : the time, and what is left of the phase that runs.
        until_ns : nothing that ends after this is done here.
        quiet_ns : stop at a pause of this length.

        Returns
        -------
        now, left, busy : where it stopped; `left` is 0 when that is a pause; and the time that phases took.
        """
        busy_ns = 0
        while True:
            end_ns = now_ns + ceil(left)
            if end_ns > until_ns:
                return now_ns, left, busy_ns
            busy_ns += end_ns - now_ns
            now_ns = end_ns
            self.end(now_ns)
            if self.next_ns - now_ns >= quiet_ns or self.next_ns > until_ns:
                return now_ns, 0.0, busy_ns
            now_ns = self.next_ns
            left = self.begin(now_ns)

    def _admit(self, now_ns: int) -> None:
        while (
            self._coming is not None
            and self._coming.arrived_ns <= now_ns
            and len(self._prefill) + len(self._decoding) < self._shape.batch_max
        ):
            self._prefill.append(_Prefill(self._coming))
            self._coming = next(self._requests, None)
