"""Everything in a core's text folder, loaded together."""

from pathlib import Path

from msgspec import Struct

from engine.errors import CoreError
from engine.text.chat import ChatTemplate
from engine.text.info import TEMPLATE_FILE, TextInfo, read_text_file
from engine.text.tokenizer import Tokenizer


class TextAssets(Struct, frozen=True):
    """The tokenizer and, when the model has one, its chat template."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None

    @property
    def info(self) -> TextInfo:
        """What ``text.json`` says: end tokens, begin token, sampling defaults."""
        return self.tokenizer.info


def load_text(text_dir: Path) -> TextAssets:
    """Load a core's text folder. Raises CoreError naming the file that is at fault."""
    tokenizer = Tokenizer.load(text_dir)
    if not tokenizer.info.chat_template:
        return TextAssets(tokenizer, None)
    try:
        source = read_text_file(text_dir, TEMPLATE_FILE).decode()
    except UnicodeDecodeError as error:
        raise CoreError(f"{TEMPLATE_FILE} is not UTF-8") from error
    return TextAssets(tokenizer, ChatTemplate(source, tokenizer.info.special_tokens))
