"""Submit the choices of a request to the engine."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.protocol.sampling import GenerationFields
from app.serving.assemble import Assembler
from app.serving.context import ServingContext
from app.serving.generation import Generation
from app.serving.sampling import for_choice
from app.serving.structured import compiled
from engine.text.stops import StopMatcher
from engine.types import GenerationRequest, SamplingParams


@dataclass(frozen=True, slots=True)
class PromptStart:
    """One prompt, its parameters, and the ids whose text the output continues (empty: none)."""

    ids: tuple[int, ...]
    continues: tuple[int, ...]
    params: SamplingParams


async def start(
    context: ServingContext,
    request: GenerationFields,
    answer_id: str,
    prompts: Sequence[PromptStart],
) -> Generation:
    """Start ``n`` choices of each prompt; choice c of prompt p has index p * n + c.

    Raises what ``EngineClient.submit`` raises, and ApiError (400) for a grammar that cannot be
    served; then nothing runs.
    """
    grammars = await compiled(context, [prompt.params.grammar for prompt in prompts])
    n = request.n or 1
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
                grammar=grammars[index // n],
            )
        )
        assemblers.append(_assembler(context, request, prompt, index))
    return Generation(context.engine, requests, assemblers)


def _assembler(
    context: ServingContext, request: GenerationFields, prompt: PromptStart, index: int
) -> Assembler:
    detokenizer = context.text.tokenizer.detokenizer(
        prompt.continues, skip_special=request.skip_special_tokens is not False
    )
    matcher = StopMatcher(request.stops, include=bool(request.include_stop_str_in_output))
    return Assembler(index, detokenizer, matcher, min_tokens=prompt.params.min_tokens)
