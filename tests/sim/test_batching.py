"""The batching server, iteration by iteration: chunks of contexts, tokens, the bound of a batch, and its pauses."""

from __future__ import annotations

from ohdiff.scheduling.core import MS, US
from ohdiff.scheduling.simulator.batching import BatchingServer, BatchingShape
from ohdiff.scheduling.simulator.co_runners import NEVER_NS, CoRunnerName
from ohdiff.scheduling.simulator.traces import Request

WHO = CoRunnerName("llm", "gpu0", is_telling=False, report_ns=0)


def server(*requests: Request, batch_max: int = 64, pause_ns: int = MS) -> BatchingServer:
    """8 ms an iteration, 30 us a token of a context, 40 us a sequence."""
    return BatchingServer(WHO, BatchingShape(8 * MS, 30 * US, 40 * US, pause_ns, 2048, batch_max), iter(requests))


def run_out(one: BatchingServer, quiet_ns: int = NEVER_NS) -> int:
    """Run until nothing is left or a pause is long enough; returns when that was."""
    start_ns = one.next_ns
    now_ns, _, _ = one.run_alone(start_ns, one.begin(start_ns), NEVER_NS - 1, quiet_ns)
    return now_ns


def test_a_context_is_read_in_chunks_and_a_token_comes_of_each_iteration_after() -> None:
    one = server(Request(0, 5000, 3))
    chunks_ns = [8 * MS + 30 * US * tokens for tokens in (2048, 2048, 904)]
    first_ns = sum(chunks_ns) + 2 * MS
    assert run_out(one) == first_ns + 2 * (MS + 8 * MS + 40 * US)
    assert one.figures["first token"] == [first_ns]
    assert one.figures["latency"] == [first_ns + 2 * (MS + 8 * MS + 40 * US)]
    assert one.steps == 5


def test_each_sequence_costs_its_part_of_an_iteration() -> None:
    one = server(Request(0, 100, 2), Request(0, 100, 2), Request(0, 100, 2))
    assert run_out(one) == 8 * MS + 300 * 30 * US + MS + 8 * MS + 3 * 40 * US


def test_a_full_batch_leaves_the_next_request_waiting() -> None:
    one = server(Request(0, 100, 2), Request(0, 100, 2), batch_max=1)
    each_ns = 8 * MS + 100 * 30 * US + MS + 8 * MS + 40 * US
    assert run_out(one) == 2 * each_ns
    assert one.figures["latency"] == [each_ns, 2 * each_ns]


def test_requests_of_one_chunk_are_read_together_and_what_does_not_fit_later() -> None:
    one = server(Request(0, 2000, 1), Request(0, 100, 1))
    first_ns = 8 * MS + 2048 * 30 * US
    assert run_out(one) == first_ns + MS + 8 * MS + 52 * 30 * US + 0
    assert one.figures["first token"] == [first_ns, first_ns + MS + 8 * MS + 52 * 30 * US]


def test_a_pause_of_just_the_length_that_is_asked_for_ends_the_short_way() -> None:
    one = server(Request(0, 100, 5), pause_ns=2 * MS)
    assert run_out(one, quiet_ns=2 * MS) == 8 * MS + 100 * 30 * US
    assert one.steps == 1
    assert run_out(server(Request(0, 100, 5), pause_ns=2 * MS), quiet_ns=2 * MS + 1) > 40 * MS
