"""Request fields that say what the generated text must look like."""

import json
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from app.protocol.body import RequestModel
from engine.types import GrammarKind, GrammarSpec

_OBJECT = {"anyOf": [{"type": "object"}, {"type": "boolean"}]}
_OBJECT_OR_TEXT = {"anyOf": [*_OBJECT["anyOf"], {"type": "string"}]}


def schema_text(value: object) -> str:
    """A JSON schema as JSON text; what it says is checked when it is compiled.

    Raises ValueError with the reason.
    """
    if not isinstance(value, dict | bool):
        raise ValueError("must be a JSON schema, which is an object")
    return json.dumps(value)


def schema_or_text(value: object) -> str:
    """A JSON schema, or its JSON text as it is."""
    return value if isinstance(value, str) else schema_text(value)


def choices_text(value: object) -> str:
    """Strings to choose from, as JSON text. Raises ValueError with the reason."""
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise ValueError("must be an array of at least one string")
    return json.dumps(value)


Schema = Annotated[str, BeforeValidator(schema_text), Field(json_schema_extra=_OBJECT)]
SchemaOrText = Annotated[
    str, BeforeValidator(schema_or_text), Field(json_schema_extra=_OBJECT_OR_TEXT)
]
Choices = Annotated[
    str,
    BeforeValidator(choices_text),
    Field(json_schema_extra={"type": "array", "items": {"type": "string"}}),
]
Source = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class JsonSchemaFormat(RequestModel):
    """A named schema. ``strict`` changes nothing: the schema is always enforced."""

    name: Name
    description: str | None = None
    schema_: Annotated[Schema, Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(RequestModel):
    """What an answer must be: any text, some JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None

    @model_validator(mode="after")
    def _coherent(self) -> "ResponseFormat":
        if (self.type == "json_schema") is not (self.json_schema is not None):
            raise ValueError("type 'json_schema' and the field 'json_schema' go together")
        if self.schema_ is not None and self.type != "json_object":
            raise ValueError("the field 'schema' belongs to type 'json_object'")
        return self

    def spec(self) -> GrammarSpec | None:
        """The grammar that is asked for."""
        schema = self.json_schema.schema_ if self.json_schema else self.schema_
        if schema is not None:
            return GrammarSpec("json_schema", schema, param="response_format")
        if self.type == "json_object":
            return GrammarSpec("json_object", param="response_format")
        return None


class StructuredOutputs(RequestModel):
    """vLLM's form of the same: exactly one of its fields."""

    json_: Annotated[SchemaOrText | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: Source | None = None
    choice: Choices | None = None
    grammar: Source | None = None

    @model_validator(mode="after")
    def _one(self) -> "StructuredOutputs":
        for name, value in (self.model_extra or {}).items():
            if value not in (None, False):
                raise ValueError(f"the field {name[:40]!r} is not supported")
        if len(self.specs()) != 1:
            raise ValueError("needs exactly one of json, json_object, regex, choice, grammar")
        return self

    def specs(self) -> list[GrammarSpec]:
        """The grammars that are asked for."""
        asked: tuple[tuple[GrammarKind, str | None], ...] = (
            ("json_schema", self.json_),
            ("json_object", "" if self.json_object else None),
            ("regex", self.regex),
            ("choice", self.choice),
            ("lark", self.grammar),
        )
        return [
            GrammarSpec(kind, text, param="structured_outputs")
            for kind, text in asked
            if text is not None
        ]


class StructuredFields(RequestModel):
    """Fields of all generation endpoints that constrain the text; at most one may ask for it."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaOrText | None = None
    guided_regex: Source | None = None
    guided_choice: Choices | None = None
    guided_grammar: Source | None = None

    @property
    def grammars(self) -> list[GrammarSpec]:
        """What the text must look like, by each field that says so."""
        asked: list[GrammarSpec] = []
        if self.response_format is not None and (spec := self.response_format.spec()) is not None:
            asked.append(spec)
        if self.structured_outputs is not None:
            asked += self.structured_outputs.specs()
        guided: tuple[tuple[GrammarKind, str, str | None], ...] = (
            ("json_schema", "guided_json", self.guided_json),
            ("regex", "guided_regex", self.guided_regex),
            ("choice", "guided_choice", self.guided_choice),
            ("lark", "guided_grammar", self.guided_grammar),
        )
        asked += [
            GrammarSpec(kind, text, param=name) for kind, name, text in guided if text is not None
        ]
        return asked
