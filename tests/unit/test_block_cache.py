"""Decoded blocks: loaded once for all who want them at once, kept within bounds, never overwritten while in use."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from ohdiff.errors import IntegrityError
from ohdiff.repository import block_cache
from ohdiff.repository.block_cache import BlockCache, DecodedBlock
from ohdiff.repository.index_segment import BlockLocation

SIZE = 1000


@pytest.fixture(autouse=True)
def _small_rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_cache, "ROOM_SIZE_BYTES", SIZE)


def place(number: int, bases: bytes = b"") -> BlockLocation:
    return BlockLocation(bytes(32), 60, False, number, 0, 0, SIZE, 1, bases, b"")


def into_room(cache: BlockCache, number: int) -> Callable[[], DecodedBlock]:
    """Decodes a block into memory that is used again."""

    def load() -> DecodedBlock:
        with cache.room() as room:
            room[:] = bytes([number % 251]) * SIZE
        return DecodedBlock(memoryview(room), room)

    return load


def test_a_block_is_loaded_once_until_others_take_its_place() -> None:
    cache, loads = BlockCache(3 * SIZE), []

    def use(number: int) -> None:
        def load() -> DecodedBlock:
            loads.append(number)
            return DecodedBlock(bytes(SIZE))

        with cache.using(place(number), load) as plain:
            assert len(plain) == SIZE

    for number in (1, 2, 3, 1, 2, 3, 1, 4, 1, 2):
        use(number)
    assert loads == [1, 2, 3, 4, 2]


def test_the_memory_of_dropped_blocks_is_used_again() -> None:
    cache, rooms = BlockCache(3 * SIZE), []
    for number in range(50):
        with cache.using(place(number), into_room(cache, number)) as plain:
            assert bytes(plain) == bytes([number]) * SIZE
            if not any(room is plain.obj for room in rooms):  # type: ignore[union-attr]
                rooms.append(plain.obj)  # type: ignore[union-attr]
    assert len(rooms) == 3


def test_blocks_that_fail_to_decode_take_no_memory() -> None:
    cache = BlockCache(3 * SIZE)

    def fail() -> DecodedBlock:
        with cache.room():
            raise IntegrityError("damaged")

    for number in range(20):
        with pytest.raises(IntegrityError):
            cache.take(place(number), fail)
    kept = [into_room(cache, number) for number in range(3)]
    for number in (0, 1, 2, 0, 1, 2):
        with cache.using(place(number), kept[number]) as plain:
            assert bytes(plain) == bytes([number]) * SIZE
        kept[number] = fail


def test_a_block_in_use_is_not_overwritten_when_it_is_dropped() -> None:
    cache = BlockCache(SIZE)
    with cache.using(place(0), into_room(cache, 0)) as plain:
        for number in range(1, 20):
            with cache.using(place(number), into_room(cache, number)):
                pass
        assert bytes(plain) == bytes(SIZE)


def test_a_block_that_was_taken_is_never_overwritten() -> None:
    cache = BlockCache(SIZE)
    taken = [cache.take(place(number), into_room(cache, number)) for number in range(10)]
    with cache.using(place(100), into_room(cache, 100)):
        pass
    late = cache.take(place(100), into_room(cache, 100))
    for number in range(10, 20):
        with cache.using(place(number), into_room(cache, number)):
            pass
    assert [bytes(plain) for plain in taken] == [bytes([number]) * SIZE for number in range(10)]
    assert bytes(late) == bytes([100]) * SIZE


def test_threads_that_want_the_same_block_at_once_have_it_loaded_once() -> None:
    cache, begun, go_on, loads = BlockCache(SIZE), threading.Event(), threading.Event(), []

    def load() -> DecodedBlock:
        loads.append(1)
        begun.set()
        assert go_on.wait(60)
        return DecodedBlock(b"x" * SIZE)

    results: list[bytes] = []

    def want() -> None:
        with cache.using(place(1), load) as plain:
            results.append(bytes(plain))

    threads = [threading.Thread(target=want) for _ in range(6)]
    threads[0].start()
    assert begun.wait(60)
    for thread in threads[1:]:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert results == [b"x" * SIZE] * 6
    assert loads == [1]


def test_an_error_reaches_everybody_who_waits_and_the_next_one_tries_again() -> None:
    cache, begun, go_on, errors = BlockCache(SIZE), threading.Event(), threading.Event(), []

    def fail() -> DecodedBlock:
        begun.set()
        assert go_on.wait(60)
        raise IntegrityError("damaged")

    def want() -> None:
        try:
            cache.take(place(1), fail)
        except IntegrityError as error:
            errors.append(error)

    threads = [threading.Thread(target=want) for _ in range(4)]
    threads[0].start()
    assert begun.wait(60)
    for thread in threads[1:]:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert len(errors) == 4
    assert cache.take(place(1), lambda: DecodedBlock(b"whole")) == b"whole"


def test_blocks_that_stand_on_each_other_in_a_circle_do_not_wait_for_themselves() -> None:
    cache, depth = BlockCache(SIZE), []

    def load() -> DecodedBlock:
        depth.append(1)
        if len(depth) > 5:
            raise IntegrityError("a chain that does not end")
        return DecodedBlock(cache.take(place(1, bytes(16)), load))

    with pytest.raises(IntegrityError, match="does not end"):
        cache.take(place(1, bytes(16)), load)


def test_many_threads_see_only_the_blocks_that_they_asked_for() -> None:
    cache, wrong = BlockCache(3 * SIZE), []

    def run(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(2_000):
            number = dice.randrange(12)
            with cache.using(place(number), into_room(cache, number)) as plain:
                if bytes(plain) != bytes([number]) * SIZE:
                    wrong.append(number)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
