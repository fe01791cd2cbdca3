"""Everything in a core's text folder, loaded together."""

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from engine.errors import CoreError
from engine.text.chat import ChatTemplate
from engine.text.info import TEMPLATE_FILE, TextInfo, text_file
from engine.text.tokenizer import Tokenizer


class TextAssets(Struct, frozen=True):
    """The tokenizer and, when the model has one, its chat template."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None

    @property
    def info(self) -> TextInfo:
        """What ``text.json`` says: end tokens, begin token, sampling defaults."""
        return self.tokenizer.info


def folder_files(folder: Path) -> dict[str, bytes]:
    """Read a core's text folder as it is, for tools that need no other part of the core."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def load_text(files: Mapping[str, bytes]) -> TextAssets:
    """Load a core's text files, by name (``Core.text_files``).

    Raises CoreError naming the file that is at fault.
    """
    tokenizer = Tokenizer.load(files)
    if not tokenizer.info.chat_template:
        return TextAssets(tokenizer, None)
    try:
        source = text_file(files, TEMPLATE_FILE).decode()
    except UnicodeDecodeError as error:
        raise CoreError(f"{TEMPLATE_FILE} is not UTF-8") from error
    return TextAssets(tokenizer, ChatTemplate(source, tokenizer.info.special_tokens))
