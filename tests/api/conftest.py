"""The running application that the API tests talk to."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.support.api import Api, serving_api


@pytest_asyncio.fixture
async def api() -> AsyncIterator[Api]:
    """A fresh server over a scripted model; at the end nothing is left running."""
    async with serving_api() as running:
        yield running
        await running.idle()
