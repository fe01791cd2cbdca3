"""Strict readers of setting values: text from a flag, a variable or .env to a typed value."""

import re
from collections.abc import Callable
from urllib.parse import urlsplit

TRUE_WORDS = frozenset({"true", "1", "yes", "on"})
FALSE_WORDS = frozenset({"false", "0", "no", "off"})
_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{prefix}ib": 1024 ** (power + 1) for power, prefix in enumerate("kmgt")}
_UNITS |= {f"{prefix}b": 1000 ** (power + 1) for power, prefix in enumerate("kmgt")}


def flag(value: object) -> bool:
    """true/1/yes/on or false/0/no/off, in any case; anything else is refused."""
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise ValueError(f"must be true/1/yes/on or false/0/no/off, not {value!r}")


def whole(low: int, high: int) -> Callable[[object], int]:
    """A reader of whole decimal numbers within [low, high]."""

    def read(value: object) -> int:
        text = str(value).strip()
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text) or not low <= int(text) <= high:
            raise ValueError(f"must be a whole number from {low} to {high}, not {value!r}")
        return int(text)

    return read


def seconds(low: float, high: float) -> Callable[[object], float]:
    """A reader of finite numbers of seconds within [low, high]."""
    return number("number of seconds", low, high)


def number(what: str, low: float, high: float) -> Callable[[object], float]:
    """A reader of finite decimal numbers within [low, high]; messages call them ``what``."""

    def read(value: object) -> float:
        text = str(value).strip()
        plain = re.fullmatch(r"[0-9]{1,9}(\.[0-9]{0,9})?", text)
        if not plain or not low <= float(text) <= high:
            raise ValueError(f"must be a {what} from {low:g} to {high:g}, not {value!r}")
        return float(text)

    return read


def size(low: int) -> Callable[[object], int]:
    """A reader of byte counts: plain bytes, or with a unit (KiB, MiB, GiB, TiB, KB ... TB)."""

    def read(value: object) -> int:
        match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)", str(value).strip())
        unit = _UNITS.get(match[2].lower()) if match else None
        if match is None or unit is None:
            raise ValueError(f"must be a size such as 1073741824 or 2GiB, not {value!r}")
        number = int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit
        if not low <= number < 1 << 62:
            raise ValueError(f"must be a size of at least {low} bytes, not {value!r}")
        return number

    return read


def word(value: object) -> str:
    """A word of a fixed list, in any case; the field's type holds the list."""
    return str(value).strip().lower()


def names(value: object) -> tuple[str, ...]:
    """Comma-separated names; blanks around them do not count, an empty list is refused."""
    return _listed(value, "name")


def keys(value: object) -> tuple[str, ...]:
    """Comma-separated secrets. The message never repeats the value."""
    found = _listed(value, "key")
    if any(re.search(r"\s", key) for key in found):
        raise ValueError("must hold keys without blanks, separated by commas")
    return found


def key(value: object) -> str:
    """One secret. The message never repeats the value."""
    text = str(value).strip()
    if not text or re.search(r"[\s,]", text):
        raise ValueError("must be one key without blanks or commas")
    return text


def origins(value: object) -> tuple[str, ...]:
    """Comma-separated CORS origins, each ``*`` or ``scheme://host[:port]``."""
    found = names(value)
    for origin in found:
        parts = urlsplit(origin)
        plain = parts.scheme and parts.netloc and origin == f"{parts.scheme}://{parts.netloc}"
        if origin != "*" and not plain:
            raise ValueError(f"must hold origins such as https://chat.example.org, not {origin!r}")
    return found


def _listed(value: object, what: str) -> tuple[str, ...]:
    """The parts between commas, or of a sequence, without repetitions and blanks around them."""
    parts = value if isinstance(value, tuple | list) else str(value).split(",")
    found = tuple(dict.fromkeys(text for part in parts if (text := str(part).strip())))
    if not found:
        raise ValueError(f"must hold at least one {what} between its commas")
    return found
