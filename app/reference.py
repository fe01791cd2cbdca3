"""Write docs/api-reference.md from the models: ``python -m app.reference [FILE]``."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from app.main import ENDPOINTS
from app.meanings import Meanings
from app.protocol.body import Refused, RequestModel
from app.protocol.chat import CHAT_REFUSED, ChatRequest
from app.protocol.completions import COMPLETION_REFUSED, CompletionRequest
from app.protocol.messages import COUNT_REFUSED, MESSAGE_REFUSED, CountRequest, MessageRequest
from app.protocol.responses import RESPONSE_REFUSED, ResponseRequest
from app.protocol.tokenize import TOKENIZE_REFUSED, TokenizeRequest
from app.routing import Endpoint
from app.tables import Table, tables

FILE = Path(__file__).parents[1] / "docs" / "api-reference.md"
REFUSED: Mapping[type[RequestModel], Mapping[str, Refused]] = {
    ChatRequest: CHAT_REFUSED,
    CompletionRequest: COMPLETION_REFUSED,
    ResponseRequest: RESPONSE_REFUSED,
    MessageRequest: MESSAGE_REFUSED,
    CountRequest: COUNT_REFUSED,
    TokenizeRequest: TOKENIZE_REFUSED,
}
INTRO = """\
# API reference

Every route and every field of its body. `make docs` writes this page from the models that check
requests, so it lists exactly what is accepted; [HTTP API](api.md) tells how the parts work
together. `null` always means the same as leaving a field out. "Off" is the value that asks for
nothing. "Origin" says whose field it is; "extension": none of theirs. A field that nobody knows is
ignored, a known one that is not supported is refused by name.
"""


def markdown() -> str:
    """The whole page."""
    meanings = Meanings.load()
    objects: dict[str, Table] = {}
    lines = [INTRO]
    for endpoint in ENDPOINTS:
        if endpoint.tag is not None:
            lines += _endpoint(endpoint, meanings, objects)
    lines.append("## Objects\n")
    for table in objects.values():
        lines += [f"### {table.name}\n", table.about + "\n", *_table(table)]
    return "\n".join(lines).rstrip() + "\n"


def _endpoint(endpoint: Endpoint, meanings: Meanings, objects: dict[str, Table]) -> Iterator[str]:
    """The section of an endpoint; the models within its body are added to ``objects``."""
    yield f"## {endpoint.method} {endpoint.path.replace(':path', '')}\n"
    yield endpoint.description + "\n"
    yield "Answers " + " or ".join(f"`{kind}`" for kind in endpoint.produces) + ".\n"
    body = endpoint.body_model
    if body is None:
        return
    first, *nested = tables(body, meanings)
    yield from _table(first)
    for table in nested:
        known = objects.setdefault(table.name, table)
        if known != table:
            raise ValueError(f"two different objects are called {table.name}")
    if refused := REFUSED.get(body):
        yield from _refused(refused)


def _table(table: Table) -> Iterator[str]:
    yield f"| {' | '.join(table.heads)} |"
    yield "|---" * len(table.heads) + "|"
    for row in table.rows:
        cells = (cell.replace("\n", " ") for cell in row.cells)
        yield f"| `{row.name}` | {' | '.join(cells)} |"
    yield ""


def _refused(rules: Mapping[str, Refused]) -> Iterator[str]:
    yield "Refused, unless the value asks for nothing:\n"
    yield "| field | accepted | otherwise |"
    yield "|---|---|---|"
    for name, rule in sorted(rules.items()):
        accepted = ", ".join(f"`{json.dumps(value)}`" for value in (None, *rule.neutral))
        yield f"| `{name}` | {accepted} | {rule.reason} |"
    yield ""


def main(arguments: list[str]) -> int:
    """Write the page to the file named, or to its place in docs."""
    file = Path(arguments[0]) if arguments else FILE
    file.write_text(markdown(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
