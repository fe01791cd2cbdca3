"""What every generation route works with."""

from msgspec import Struct

from app.errors import ApiError
from engine.grammar.compiler import GrammarCompiler
from engine.text.assets import TextAssets
from engine.types import EngineClient


class ServingContext(Struct, frozen=True):
    """The loaded engine and its text side, with the limits of the HTTP face.

    model_names: what requests may call the model; the first is the one that is listed.
    ping_seconds: silence after which a stream gets a comment (0: never). max_choices: most
    sequences that one request may start (prompts times n). tool_parser, reasoning_parser: names of
    parsers; auto: what the chat template asks for; none: text is not searched.
    """

    engine: EngineClient
    text: TextAssets
    grammars: GrammarCompiler
    model_names: tuple[str, ...]
    ping_seconds: float = 15.0
    max_choices: int = 1024
    tool_parser: str = "auto"
    reasoning_parser: str = "auto"

    @property
    def template_source(self) -> str:
        """The model's chat template as it is written; empty where it has none."""
        template = self.text.chat_template
        return "" if template is None else template.source

    def check_model(self, name: str | None) -> None:
        """Raise ApiError (404) unless ``name`` is a served name; None is the default model."""
        if name is not None and name not in self.model_names:
            raise ApiError(
                404,
                f"The model {name[:200]!r} is not served here; see GET /v1/models.",
                param="model",
                code="model_not_found",
            )
