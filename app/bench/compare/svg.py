"""Elements of HTML and SVG as text; whatever comes from outside is escaped here."""

from collections.abc import Iterable
from html import escape


def element(name: str, content: str = "", **attributes: object) -> str:
    """An element around markup. In names, ``_`` is ``-``; one at the end is dropped."""
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
    )
    return f"<{name}{shown}>{content}</{name}>"


def text(content: object) -> str:
    """Plain text as markup."""
    return escape(str(content))


def label(content: object, x: float, y: float, **attributes: object) -> str:
    """A line of text in a picture."""
    return element("text", text(content), x=x, y=y, **attributes)


def picture(
    width: float, height: float, title: str, content: Iterable[str], about: str = ""
) -> str:
    """An SVG with its title and description for those who do not see it."""
    said = element("title", text(title)) + (element("desc", text(about)) if about else "")
    return element(
        "svg",
        said + "".join(content),
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        style=f"max-width:{width:g}px",
    )


def _text(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
