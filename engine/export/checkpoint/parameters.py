"""Logical parameters of a Llama model, and how a checkpoint's tensors are bound to them."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from engine.errors import CheckpointError
from engine.export.checkpoint.base import SourceModel

Shape = tuple[int, ...]
SHOWN = 12
"""Names listed in an error before the rest is counted."""


def llama_parameters(model: SourceModel) -> dict[str, Shape]:
    """Return every parameter that the model needs: logical name -> shape.

    Names: ``embed``, ``norm``, ``head`` (unless tied) and ``layers.{i}.`` + ``attn_norm``, ``q``,
    ``k``, ``v``, ``o``, ``ffn_norm``, ``gate``, ``up``, ``down`` and the biases ``q_bias`` ...
    """
    shapes: dict[str, Shape] = {"embed": (model.vocab_rows, model.hidden)}
    for layer in range(model.layers):
        shapes.update({f"layers.{layer}.{name}": shape for name, shape in _layer(model)})
    shapes["norm"] = (model.hidden,)
    if not model.tied_head:
        shapes["head"] = (model.vocab_rows, model.hidden)
    return shapes


def _layer(model: SourceModel) -> Iterator[tuple[str, Shape]]:
    hidden, width = model.hidden, model.intermediate
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    yield "attn_norm", (hidden,)
    yield from (("q", (q, hidden)), ("k", (kv, hidden)), ("v", (kv, hidden)), ("o", (hidden, q)))
    if model.attention_bias:
        yield from (("q_bias", (q,)), ("k_bias", (kv,)), ("v_bias", (kv,)))
    if model.output_bias:
        yield "o_bias", (hidden,)
    yield "ffn_norm", (hidden,)
    yield from (("gate", (width, hidden)), ("up", (width, hidden)), ("down", (hidden, width)))


def source_names(
    logical: str, top: Mapping[str, str], layer: Mapping[str, str], prefix: str
) -> str:
    """Return the checkpoint's name of a logical parameter (``prefix``: a layer's, with ``{}``)."""
    if not logical.startswith("layers."):
        return top[logical]
    _, index, name = logical.split(".")
    return prefix.format(index) + layer[name]


def bind(
    source: str, wanted: Mapping[str, tuple[str, Shape]], available: Mapping[str, Shape]
) -> Mapping[str, str]:
    """Match logical parameters (-> source name, shape) with a checkpoint's tensors.

    Returns logical name -> source name. Raises CheckpointError naming every parameter without
    data, every tensor that no parameter takes, or every shape that differs.
    """
    names = {name for name, _ in wanted.values()}
    missing = [name for name, _ in wanted.values() if name not in available]
    unexpected = [name for name in available if name not in names]
    if missing or unexpected:
        parts = [
            f"{label}: {listing(found)}"
            for label, found in (("no data for", missing), ("unexpected tensors", unexpected))
            if found
        ]
        raise CheckpointError(
            f"{source} does not hold the model that its configuration describes: "
            + "; ".join(parts)
        )
    wrong = [
        f"{name} is {list(available[name])}, expected {list(shape)}"
        for name, shape in wanted.values()
        if available[name] != shape
    ]
    if wrong:
        raise CheckpointError(f"{source} has tensors of the wrong shape: {listing(wrong, '; ')}")
    return MappingProxyType({logical: name for logical, (name, _) in wanted.items()})


def listing(names: list[str], separator: str = ", ") -> str:
    """Join names for a message; a long list is cut and counted."""
    more = len(names) - SHOWN
    shown = separator.join(names[:SHOWN])
    return f"{shown} and {more} more" if more > 0 else shown
