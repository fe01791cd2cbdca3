"""Submit the choices of a request to the engine."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from app.protocol.sampling import GenerationFields
from app.serving.assemble import Assembler
from app.serving.context import ServingContext
from app.serving.generation import Generation
from app.serving.sampling import for_choice
from engine.text.stops import StopMatcher
from engine.types import CompiledGrammar, GenerationRequest, SamplingParams

if TYPE_CHECKING:  # only answers with tools or reasoning are read
    from app.serving.reader import ReadingPlan


class PromptStart(Struct, frozen=True):
    """One prompt, its parameters, and the ids whose text the output continues (empty: none).

    grammar: ``params.grammar``, compiled. reading: how its answers are taken apart; None: they are
    text.
    """

    ids: tuple[int, ...]
    continues: tuple[int, ...]
    params: SamplingParams
    grammar: CompiledGrammar | None = None
    reading: "ReadingPlan | None" = None


def start(
    context: ServingContext,
    request: GenerationFields,
    answer_id: str,
    prompts: Sequence[PromptStart],
    n: int,
) -> Generation:
    """Start ``n`` choices of each prompt; choice c of prompt p has index p * n + c.

    Raises what ``EngineClient.submit`` raises; then nothing runs.
    """
    requests, assemblers = [], []
    for index in range(len(prompts) * n):
        prompt = prompts[index // n]
        requests.append(
            GenerationRequest(
                id=f"{answer_id}-{index}",
                prompt_ids=prompt.ids,
                sampling=for_choice(prompt.params, index % n),
                cache_salt=request.cache_salt,
                priority=request.priority or 0,
                grammar=prompt.grammar,
            )
        )
        assemblers.append(_assembler(context, request, prompt, index))
    return Generation(context.engine, requests, assemblers)


def _assembler(
    context: ServingContext, request: GenerationFields, prompt: PromptStart, index: int
) -> Assembler:
    plan = prompt.reading
    detokenizer = context.text.tokenizer.detokenizer(
        prompt.continues,
        skip_special=request.skip_special_tokens is not False,
        shown=() if plan is None else plan.shown,
    )
    matcher = StopMatcher(request.stops, include=bool(request.include_stop_str_in_output))
    reader = None if plan is None else plan.reader(index)
    return Assembler(
        index, detokenizer, matcher, min_tokens=prompt.params.min_tokens, reader=reader
    )
