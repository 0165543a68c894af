"""Reading beside the event loop, over done chunks."""

import asyncio
import threading
import time

import pytest

from airflow_provider_rollout.engine.document import Document, Position
from airflow_provider_rollout.engine.document_feed import DocumentFeed, number_documents
from airflow_provider_rollout.engine.exceptions import InputError


def documents(count):
    return (Document("", str(number % 3)) for number in range(count))


async def read_all(feed):
    numbers = []
    while (document := await feed.get()) is not None:
        numbers.append(document.number)
    return numbers


def nothing_done(number, position):
    return number, position


async def test_all_documents_come_in_order_to_many_takers():
    """Nothing is lost between workers."""
    opened = DocumentFeed.open(number_documents(documents(1000), 10), nothing_done, records_per_chunk=10, capacity=64)
    async with opened as feed:
        taken = await asyncio.gather(*(read_all(feed) for _ in range(7)))
    assert sorted(number for numbers in taken for number in numbers) == list(range(1000))


@pytest.mark.parametrize("done", [{0}, {1}, {0, 1}, {2}, {0, 2}, {0, 1, 2, 3}])
async def test_done_chunks_are_left_out(done):
    """Wherever they stand."""
    size, count = 5, 18

    def next_gap(number, position):
        while number % size == 0 and number // size in done and number < count:
            number = min(number + size, count)
            position = Position(0, number)
        return number, position

    opened = DocumentFeed.open(number_documents(documents(count), size), next_gap, records_per_chunk=size, capacity=64)
    async with opened as feed:
        numbers = await read_all(feed)
    assert numbers == [number for number in range(count) if number // size not in done]


async def test_equal_ids_are_told_apart_within_their_chunk():
    """The key holds the occurrence."""
    opened = DocumentFeed.open(number_documents(documents(5), 10), nothing_done, records_per_chunk=10, capacity=64)
    async with opened as feed:
        keys = [(await feed.get()).key for _ in range(5)]
    assert keys == ["0", "1", "2", "0#1", "1#1"]


async def test_a_slow_source_hands_over_what_it_has():
    """The first document does not wait for a full batch."""
    release = threading.Event()

    def slow():
        yield Document("", "1")
        time.sleep(0.1)
        yield Document("", "2")
        release.wait(10)

    opened = DocumentFeed.open(number_documents(slow(), 10), nothing_done, records_per_chunk=10, capacity=64)
    async with opened as feed:
        async with asyncio.timeout(5):
            assert (await feed.get()).document.id == "1"
        release.set()


async def test_what_is_no_document_ends_the_block():
    """A None in the input does not pass for its end."""
    opened = DocumentFeed.open(
        number_documents([Document("", "1"), None], 10), nothing_done, records_per_chunk=10, capacity=9
    )
    with pytest.raises(ExceptionGroup) as caught:
        async with opened as feed:
            await read_all(feed)
    assert caught.group_contains(InputError, match="input number 1 is NoneType")


async def test_a_batch_is_shared_by_all_who_wait_for_it():
    """Workers that wait before anything is read all get a document as soon as there is one for each."""
    holding: set[int] = set()
    done = asyncio.Event()

    async def work(feed):
        document = await feed.get()
        holding.add(document.number)
        await done.wait()

    opened = DocumentFeed.open(
        number_documents(documents(200), 1000), nothing_done, records_per_chunk=1000, capacity=400
    )
    async with opened as feed, asyncio.TaskGroup() as group:
        for _ in range(100):
            group.create_task(work(feed))
        async with asyncio.timeout(10):
            while len(holding) < 100:
                await asyncio.sleep(0.01)
        done.set()
    assert holding == set(range(100))
