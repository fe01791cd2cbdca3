"""A server of the default model in a process of its own, with OpenAI's and Anthropic's clients."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import anthropic
import openai

from tests.support.process import flare, server_process


@dataclass(frozen=True, slots=True)
class Clients:
    """Both clients of one running server; ``model``: the served name."""

    openai: openai.OpenAI
    anthropic: anthropic.Anthropic
    model: str


@contextmanager
def clients_of(core: Path) -> Iterator[Clients]:
    """Both clients of a server of ``core`` on one thread."""
    command = flare("run", str(core), "--port", "0", "--kv-cache-memory", "64MiB")
    with server_process([*command, "--threads", "1"], {}) as server:
        url = server.ready()
        with (
            openai.OpenAI(base_url=f"{url}/v1", api_key="k") as one,
            anthropic.Anthropic(base_url=url, api_key="k") as other,
        ):
            yield Clients(one, other, one.models.list().data[0].id)
