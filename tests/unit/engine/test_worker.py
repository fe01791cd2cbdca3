"""The step thread: results, errors, cancellation, shutdown."""

import asyncio
import threading
import time

import pytest

from engine.worker import StepThread


async def test_results_and_errors_come_from_the_thread() -> None:
    worker = StepThread("test-step")
    worker.start()
    thread = await worker.run(threading.current_thread)
    assert thread.name == "test-step"
    with pytest.raises(ZeroDivisionError):
        await worker.run(divmod, 1, 0)
    assert await worker.run(divmod, 7, 2) == (3, 1)
    worker.stop()
    assert not thread.is_alive()


async def test_a_cancelled_caller_does_not_break_the_thread() -> None:
    worker = StepThread("test-step")
    worker.start()
    task = asyncio.create_task(worker.run(time.sleep, 0.05))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await worker.run(sum, [1, 2]) == 3
    worker.stop()


def test_a_thread_that_never_started_can_be_stopped() -> None:
    StepThread("test-step").stop()
