"""The prompt as a part of a text completion's answer."""

from collections.abc import Sequence

from msgspec import Struct

from app.protocol.completions import Prompt
from engine.text.tokenizer import Tokenizer


class Echo(Struct, frozen=True):
    """A prompt's text and where each of its tokens starts in it (characters)."""

    text: str
    ids: tuple[int, ...]
    offsets: tuple[int, ...]


def echo_of(tokenizer: Tokenizer, prompt: Prompt, ids: tuple[int, ...]) -> Echo:
    """Echo of a prompt: the text as it was sent, or the decoded ids.

    A character that the ids begin and do not finish is left to the completion. Where the text is
    not the sum of its tokens (a begin token that was added, a normalizing tokenizer), offsets are
    those of the decoded tokens, within the text.
    """
    pieces = tokenizer.detokenizer(skip_special=False).push_pieces(ids)
    if not isinstance(prompt, str):
        return Echo("".join(pieces), ids, _starts(pieces))
    if ids[0] == tokenizer.info.bos_id and not prompt.startswith(pieces[0]):
        pieces[0] = ""
    offsets = tuple(min(start, len(prompt)) for start in _starts(pieces))
    return Echo(prompt, ids, offsets)


def _starts(pieces: Sequence[str]) -> tuple[int, ...]:
    """Start of each piece in their concatenation."""
    starts, position = [], 0
    for piece in pieces:
        starts.append(position)
        position += len(piece)
    return tuple(starts)
