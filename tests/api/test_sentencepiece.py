"""Spaces of SentencePiece models: only the one that starts a text is dropped."""

from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel

from engine.text.assets import TextAssets
from engine.text.chat import ChatTemplate
from engine.text.info import PieceRules, TextInfo
from engine.text.tokenizer import Tokenizer
from tests.support.api import serving_api, stream_events
from tests.support.scripted import Behaviour, scripted_engine

WORDS = ("<unk>", "</s>", "x", "\u2581Da", "ener", "ys", "\u2581is", "\u2581here")
PROMPT, SAID = (2,), (3, 4, 5, 6, 7)


def assets() -> TextAssets:
    """A vocabulary of whole words; every conversation is rendered as ``x``."""
    info = TextInfo(
        vocab_size=len(WORDS),
        add_bos=False,
        bos_id=None,
        eos_ids=(1,),
        pieces=PieceRules("sentencepiece", byte_fallback=True, strip_space=True),
    )
    vocab = {word: index for index, word in enumerate(WORDS)}
    backend = Backend(WordLevel(vocab, unk_token="<unk>"))
    return TextAssets(Tokenizer(backend, info), ChatTemplate("x", {}))


async def test_spaces() -> None:
    """H8: only the dummy space at the very start goes."""
    size = len(WORDS)
    behaviour = Behaviour(vocab_size=size, logits_width=size, eos=(1,), scripts={PROMPT: SAID})
    messages: list[dict[str, Any]] = [{"role": "user", "content": "x"}]
    async with serving_api(parts=scripted_engine(behaviour), text=assets()) as api:
        chat = (await api.chat(messages=messages)).json()["choices"][0]["message"]["content"]
        events = await stream_events(api.http, "/v1/chat/completions", {"messages": messages})
        text = (await api.complete(prompt="x")).json()["choices"][0]["text"]
        chunks = await stream_events(api.http, "/v1/completions", {"prompt": "x"})
        echoed = (await api.complete(prompt="x", echo=True)).json()["choices"][0]["text"]
        streamed = "".join(c["delta"].get("content", "") for c in events.of())
        assert chat == streamed == "Daenerys is here"
        assert text == "".join(c["text"] for c in chunks.of()) == " Daenerys is here"
        assert echoed == "x Daenerys is here"
        await api.idle()
