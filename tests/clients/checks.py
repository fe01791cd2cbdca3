"""What every client of another ecosystem is asked to do, and how its script tells the outcome.

A script has one function per check and ends with ``report``. It finds the server in FLARE_URL and
the model's name in FLARE_MODEL.
"""

import asyncio
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Literal

from pydantic import BaseModel, Field

BASE_URL = os.environ["FLARE_URL"] + "/v1"
MODEL = os.environ["FLARE_MODEL"]
KEY = os.environ.get("FLARE_KEY", "unused")
QUESTION = "What is the capital of France?"
PAINT = "Choose a colour and how many walls to paint with it. Answer in JSON."
WEATHER = "What is the weather in Paris?"


class Paint(BaseModel):
    """How walls are painted: short values, so that a small model ends by itself."""

    colour: Literal["red", "green", "blue"]
    walls: int = Field(ge=1, le=9)


TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Paris", "Rome"]},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


City = Literal["Paris", "Rome"]
Unit = Literal["celsius", "fahrenheit"]


def get_weather(city: City, unit: Unit) -> str:
    """The weather of a city.

    Args:
        city: where.
        unit: of the temperature.
    """
    return f"It is 21 degrees {unit} and sunny in {city}."


def report(package: str, *checks: Callable[[], Any]) -> None:
    """Run the checks; a line of JSON for each: client, version, check, error (null: passed)."""
    failed = False
    for check in checks:
        error = None
        try:
            result = check()
            if inspect.isawaitable(result):
                asyncio.run(_await(result))
        except Exception as exc:
            error = f"{type(exc).__name__}: {exc}"
            traceback.print_exc()
            failed = True
        line = {"client": package, "version": version(package), "check": check.__name__}
        print(json.dumps({**line, "error": error}), flush=True)
    sys.exit(failed)


async def _await(result: Any) -> None:
    await result
