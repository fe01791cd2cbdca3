"""A tiny byte-level tokenizer with hand-picked pieces and a chat template, for scripted models."""

from collections.abc import Sequence

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from engine.text.assets import TextAssets
from engine.text.chat import ChatTemplate
from engine.text.info import GenerationDefaults, PieceRules, TextInfo
from engine.text.pieces import byte_alphabet
from engine.text.tokenizer import Tokenizer

SPECIALS = ("<|end|>", "<|im_start|>", "<|im_end|>")
PIECES = ("ABC", "DEF", "HI", "JK", "one", " two", " three", "\u4e2d", "END", "<tail>")
FIRST_BYTE = len(SPECIALS)
FIRST_PIECE = FIRST_BYTE + 256
VOCAB_SIZE = FIRST_PIECE + len(PIECES)
EOS = (0, 2)

TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('The system message must come first.') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if tone is defined %}[{{ tone }}]{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_ids(text: str) -> tuple[int, ...]:
    """The ids that ``text`` is encoded to, when it spells no special token."""
    return tuple(FIRST_BYTE + byte for byte in text.encode())


def piece_ids(*pieces: str | bytes) -> list[int]:
    """One id per piece: a listed piece, a special token, or a single byte."""
    ids = []
    for piece in pieces:
        if isinstance(piece, bytes):
            ids += [FIRST_BYTE + byte for byte in piece]
        elif piece in SPECIALS:
            ids.append(SPECIALS.index(piece))
        else:
            ids.append(FIRST_PIECE + PIECES.index(piece))
    return ids


def text_assets(
    *,
    template: str | None = TEMPLATE,
    defaults: GenerationDefaults | None = None,
    begin: int | None = None,
) -> TextAssets:
    """Tokenizer and template; ids 0 and 2 end a sequence. ``begin``: prompts begin with it."""
    info = TextInfo(
        vocab_size=VOCAB_SIZE,
        add_bos=begin is not None,
        bos_id=begin,
        eos_ids=EOS,
        pieces=PieceRules("byte_level"),
        special_tokens={"eos_token": SPECIALS[0]},
        generation=defaults or GenerationDefaults(),
    )
    tokenizer = Tokenizer(_backend(), info)
    if template is None:
        return TextAssets(tokenizer, None)
    return TextAssets(tokenizer, ChatTemplate(template, info.special_tokens))


def chat_ids(assets: TextAssets, messages: Sequence[dict[str, object]]) -> tuple[int, ...]:
    """Prompt ids of a conversation."""
    assert assets.chat_template is not None
    return tuple(assets.tokenizer.encode(assets.chat_template.render(messages)))


def _backend() -> Backend:
    letters = {byte: char for char, byte in byte_alphabet().items()}
    vocab = {text: index for index, text in enumerate(SPECIALS)}
    vocab |= {letters[byte]: FIRST_BYTE + byte for byte in range(256)}
    for index, piece in enumerate(PIECES):
        vocab["".join(letters[byte] for byte in piece.encode())] = FIRST_PIECE + index
    backend = Backend(BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = ByteLevelDecoder()
    backend.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    return backend
