"""Generated text of many kinds, the same on every run."""

import random

_SPELLED = """the model serves a café naïve résumé don't you'll I'm WE'VE it's Ångström
Straße Москва нейросеть Ελληνικά شجرة كتاب עברית हिन्दी ภาษาไทย 中文 日本語 漢字かな交じり 한국어
😀 👍🏽 🇫🇷 ½ Ⅷ ٣٤ 〇 ²"""
_COMPOSED = ("e\u0301", "n\u0303", "a\u0323\u0302", "\U0001f469\u200d\U0001f469\u200d\U0001f467")
_INVISIBLE = ("\u200f", "\u200b", "\ufeff", "\u00a0", "\u2028")
WORDS = (*_SPELLED.split(), *_COMPOSED, *_INVISIBLE)
CODE = (
    "def f(x: int) -> str:\n    return f'{x!r}'\n",
    "for (int i = 0; i < 10; ++i) { sum += a[i] * 0x1F; }",
    "SELECT * FROM t WHERE id=42 AND name LIKE '%x%';",
    '<div class="a">&amp;</div>\r\n\t<br/>',
    "\\begin{equation} \\alpha_{i} = 3.14159e-10 \\end{equation}",
    '{"key": [1, 2.5, null], "nested": {"a": "b"}}',
)
SPACES = (" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n ", "        ", "\n\n\n\n", " \t ")
CONTROLS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<s>", "</s>", "<|x|>")


def mixed_lines(count: int, *, controls: bool = False, seed: int = 1) -> list[str]:
    """Return lines of words, code, digits, spaces and random characters; see the module."""
    rng = random.Random(seed)
    return [_line(rng, controls) for _ in range(count)]


def _line(rng: random.Random, controls: bool) -> str:
    makers = [_word, _code, _number, _space, _random_characters, _punctuation]
    if controls:
        makers.append(_control)
    return "".join(rng.choice(makers)(rng) for _ in range(rng.randint(1, 24)))


def _word(rng: random.Random) -> str:
    return rng.choice(("", " ")) + rng.choice(WORDS)


def _code(rng: random.Random) -> str:
    return rng.choice(CODE)


def _number(rng: random.Random) -> str:
    return rng.choice(("", " ", "-")) + str(rng.randint(0, 10 ** rng.randint(1, 12)))


def _space(rng: random.Random) -> str:
    return rng.choice(SPACES)


def _punctuation(rng: random.Random) -> str:
    return "".join(rng.choice("!?.,;:'\"()[]{}<>|/\\@#$%^&*_+-=~`…—“”") for _ in range(3))


def _control(rng: random.Random) -> str:
    return rng.choice(CONTROLS)


def _random_characters(rng: random.Random) -> str:
    ranges = ((0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x590, 0x700), (0x3040, 0x30FF))
    wide = ((0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x1F300, 0x1F6FF), (0x20000, 0x20100))
    low, high = rng.choice(ranges + wide)
    return "".join(chr(rng.randrange(low, high)) for _ in range(rng.randint(1, 5)))
