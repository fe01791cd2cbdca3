"""Corruptions of a core: of its bytes, its JSON text, its values and its folder.

Each is drawn from a ``random.Random``, so that a number names a case for good. A *sealed* case is
one of somebody who knows the format: sections and digests are computed anew, so that only what
validation knows can refuse it.
"""

import copy
import json
import os
import random
import socket
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from engine.core.codec import MANIFEST, PROGRAMS
from engine.core.digests import bytes_digest, content_digest, root_digest

Files = dict[str, bytes]


class Pristine(Struct, frozen=True):
    """The core that cases start from: bytes by path, and the values of its JSON files."""

    files: Mapping[str, bytes]
    values: Mapping[str, Any]
    strings: tuple[str, ...]
    numbers: tuple[int, ...]


class Case(Struct, frozen=True):
    """One corruption. files: changed or new ones. tree: done to the written folder, or None."""

    name: str
    files: Files
    sealed: bool
    tree: Callable[[Path], None] | None = None


def read_pristine(core: Path) -> Pristine:
    """Read a core that all cases start from."""
    files = {
        file.relative_to(core).as_posix(): file.read_bytes()
        for file in sorted(core.rglob("*"))
        if file.is_file()
    }
    values = {path: json.loads(data) for path, data in files.items() if path.endswith(".json")}
    leaves = [leaf for path in (MANIFEST, PROGRAMS) for leaf in _leaves(values[path])]
    strings = sorted({leaf for leaf in leaves if isinstance(leaf, str)})
    numbers = sorted({leaf for leaf in leaves if type(leaf) is int})
    return Pristine(files, values, tuple(strings), tuple(numbers))


def draw(random_: random.Random, pristine: Pristine) -> Case:
    """Return one case: mostly of values, since those go deepest."""
    kinds = (_bytes_case, _text_case, _tree_case, _value_case)
    [kind] = random_.choices(kinds, (30, 10, 5, 55))
    return kind(random_, pristine)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for child in value.values() if isinstance(value, dict) else value:
            yield from _leaves(child)
    else:
        yield value


def seal(files: Files, pristine: Pristine) -> Files:
    """Make the digests right again where the manifest still has a place for them."""
    changed = dict(files)
    try:
        values = json.loads(changed.get(MANIFEST, pristine.files[MANIFEST]))
        for section in values["sections"]:
            data = changed.get(section["path"])
            if data is not None:
                section["size"], section["digest"] = len(data), content_digest(data)
        for tensor in values["storage"]:
            data = changed.get(tensor["file"])
            if data is not None:
                start = tensor["offset"]
                tensor["digest"] = bytes_digest(data[start : start + tensor["size"]])
        values["root_digest"] = root_digest(values)
        changed[MANIFEST] = json.dumps(values).encode()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass  # no longer a manifest: it is refused as it is
    return changed


# --- bytes ---------------------------------------------------------------------------------


def _bytes_case(random_: random.Random, pristine: Pristine) -> Case:
    path = random_.choice(tuple(pristine.files))
    edit = random_.choice(_BYTE_EDITS)
    data = edit(random_, bytearray(pristine.files[path]), pristine)
    sealed = random_.random() < 0.5
    files = {path: bytes(data)}
    name = f"{edit.__name__.strip('_')} {path}"
    return Case(name, seal(files, pristine) if sealed else files, sealed)


def _flip(random_: random.Random, data: bytearray, _: Pristine) -> bytearray:
    if data:
        data[random_.randrange(len(data))] ^= 1 << random_.randrange(8)
    return data


def _overwrite(random_: random.Random, data: bytearray, _: Pristine) -> bytearray:
    start = random_.randrange(len(data) + 1)
    count = random_.choice((1, 2, 4, 8, 64))
    data[start : start + count] = random_.randbytes(count)
    return data


def _cut(random_: random.Random, data: bytearray, _: Pristine) -> bytearray:
    return data[: random_.randrange(len(data) + 1)]


def _remove(random_: random.Random, data: bytearray, _: Pristine) -> bytearray:
    start = random_.randrange(len(data) + 1)
    del data[start : start + random_.choice((1, 2, 16, 64, 4096))]
    return data


def _insert(random_: random.Random, data: bytearray, _: Pristine) -> bytearray:
    start = random_.randrange(len(data) + 1)
    data[start:start] = random_.randbytes(random_.choice((1, 2, 16, 64)))
    return data


def _extend(random_: random.Random, data: bytearray, _: Pristine) -> bytearray:
    return data + random_.choice((b"\0", b" ", b"x" * 64, bytes(data[:64]), bytes(data)))


def _replace(random_: random.Random, data: bytearray, pristine: Pristine) -> bytearray:
    return bytearray(random_.choice((b"", b"{}", b"[]", *pristine.files.values())))


_BYTE_EDITS = (_flip, _flip, _flip, _overwrite, _cut, _remove, _insert, _extend, _replace)

# --- text ----------------------------------------------------------------------------------

_TEXTS = (
    "NaN", "-Infinity", "1e999", "-0.0", "9" * 30, "9" * 5000, "1e-400", "0x10", "01", "1_0",
    '"\\ud800"', '"\\u0000"', '"\ufeff"', "'a'", "tru", "null", "{}", "[]", '""', "-", "/*x*/1",
    '{"a": 1, "a": 2}', "\x00", '"\t"',
)  # fmt: skip


def _text_case(random_: random.Random, pristine: Pristine) -> Case:
    path = random_.choice([path for path in pristine.files if path.endswith(".json")])
    text = pristine.files[path].decode()
    edit = random_.choice((_repeat_key, _odd_value, _nest, _encode))
    data = edit(random_, text)
    sealed = random_.random() < 0.7
    files = {path: data}
    name = f"{edit.__name__.strip('_')} {path}"
    return Case(name, seal(files, pristine) if sealed else files, sealed)


def _marks(text: str, mark: str) -> list[int]:
    return [i for i, character in enumerate(text) if character == mark]


def _repeat_key(random_: random.Random, text: str) -> bytes:
    """Write some member of an object twice, where it is found."""
    start = random_.choice(_marks(text, "{") or [0]) + 1
    end = text.find(",", start)
    member = text[start:end] if end > 0 else '"a": 1'
    return f"{text[:start]}{member}, {text[start:]}".encode("utf-8", "surrogatepass")


def _odd_value(random_: random.Random, text: str) -> bytes:
    start = random_.choice(_marks(text, ":") or [0]) + 1
    ends = [end for mark in ",}]\n" if (end := text.find(mark, start)) > 0]
    end = min(ends, default=len(text))
    return f"{text[:start]} {random_.choice(_TEXTS)}{text[end:]}".encode("utf-8", "surrogatepass")


def _nest(random_: random.Random, text: str) -> bytes:
    start = random_.choice(_marks(text, ":") or [0]) + 1
    depth = random_.choice((5, 100, 500, 900, 990, 1500, 50_000))
    opening, closing = random_.choice((("[", "]"), ('{"a":', "}")))
    inner = opening * depth + "1" + closing * depth
    end = min(e for mark in ",}\n" if (e := text.find(mark, start)) > 0)
    return f"{text[:start]} {inner}{text[end:]}".encode()


def _encode(random_: random.Random, text: str) -> bytes:
    return text.encode(random_.choice(("utf-16", "utf-32", "utf-8-sig", "utf-16-le")))


# --- the folder ----------------------------------------------------------------------------


def _tree_case(random_: random.Random, pristine: Pristine) -> Case:
    path = random_.choice((*pristine.files, "storage", "text"))
    edit = random_.choice(_TREE_EDITS)
    return Case(f"{edit.__name__.strip('_')} {path}", {}, False, lambda core: edit(core, path))


def _gone(core: Path, path: str) -> Path:
    """Take a file or folder away, out of the core; return where it was."""
    target = core / path
    target.rename(core.parent / "outside")
    return target


def _missing(core: Path, path: str) -> None:
    _gone(core, path)


def _link_out(core: Path, path: str) -> None:
    _gone(core, path).symlink_to(core.parent / "outside")


def _relative_link_out(core: Path, path: str) -> None:
    _gone(core, path).symlink_to(Path("../" * (path.count("/") + 1)) / "outside")


def _link_to_nothing(core: Path, path: str) -> None:
    _gone(core, path).symlink_to("nowhere")


def _link_to_itself(core: Path, path: str) -> None:
    target = _gone(core, path)
    target.symlink_to(target.name)


def _link_to_device(core: Path, path: str) -> None:
    _gone(core, path).symlink_to("/dev/zero")


def _link_within(core: Path, path: str) -> None:
    target = core / path
    target.rename(target.with_name("moved"))
    target.symlink_to("moved")


def _folder_instead(core: Path, path: str) -> None:
    _gone(core, path).mkdir()


def _file_instead(core: Path, path: str) -> None:
    _gone(core, path).write_bytes(b"x")


def _pipe(core: Path, path: str) -> None:
    os.mkfifo(_gone(core, path))


def _socket(core: Path, path: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(_gone(core, path)))


def _device(core: Path, path: str) -> None:
    target = _gone(core, path)
    try:
        os.mknod(target, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except PermissionError:  # not for everybody: another that is no file
        os.mkfifo(target)


def _hard_link(core: Path, path: str) -> None:
    if (core / path).is_file():
        os.link(core / path, core / "again")


def _unlisted(core: Path, path: str) -> None:
    folder = core / path if (core / path).is_dir() else (core / path).parent
    (folder / "extra.json").write_bytes(b"{" * 100)
    (folder / ".hidden").symlink_to("/")


def _other_case(core: Path, path: str) -> None:
    target = core / path
    target.rename(target.with_name(target.name.upper()))


_TREE_EDITS = (
    _missing, _link_out, _relative_link_out, _link_to_nothing, _link_to_itself, _link_to_device,
    _link_within, _folder_instead, _file_instead, _pipe, _socket, _device, _hard_link, _unlisted,
    _other_case,
)  # fmt: skip

# --- values --------------------------------------------------------------------------------

_INTEGERS = (0, 1, -1, 2, 7, 63, 64, 65, 2**15, 2**24, 2**30, 2**31 - 1, 2**31, 2**32, 2**40,
             2**62, 2**63 - 1, 2**63, -(2**63), 10**30)  # fmt: skip
_FLOATS = (0.0, -0.0, -1.0, 1e-45, 1e-300, 1e30, 1e38, 1e308, 0.5, 5e-324)
_STRINGS = (
    "", " ", ".", "..", "../outside", "/etc/hostname", "/", "text/../core.json", "core.json",
    "storage/rank0.safetensors", "storage/rank1.safetensors", "programs.json", "text/text.json",
    "storage\\rank0.safetensors", "a\x00b", "\ud800", "ｃｐｕ", "cpu\u200b", "dec\u043ede",
    "e\u0301", "\u202ecpu", "x" * 300, "x" * 70_000, "%s%n", "{}", "[/]", "[bold]a[/bold]",
    "\x1b[2J", ":boom:", "a\nb", "int8_g32", "int12_g32", "bf16_g32",
    "bf16_t32", "q4p16", "q8p16", "bf16p16", "plain", "F32", "U8", "f32", "i32", "u8", "tokens",
    "seqs", "logits", "cuda", "mixed", "separate", "decode", "prefill", "verify", "draft",
    "amx", "portable", "silu_mul", "none", "input", "weight", "state", "temp", "output",
)  # fmt: skip


def _value_case(random_: random.Random, pristine: Pristine) -> Case:
    tables = [path for path in pristine.values if path not in (MANIFEST, PROGRAMS)]
    weights = (45, 45, *[10 // len(tables) or 1] * len(tables))
    [path] = random_.choices((MANIFEST, PROGRAMS, *tables), weights)
    if random_.random() < 0.15:
        return _everywhere(random_, pristine)
    values = json.loads(pristine.files[path])
    names = [_change(random_, values, pristine) for _ in range(random_.choice((1, 1, 1, 2, 3)))]
    files = {path: json.dumps(values).encode("utf-8", "surrogatepass")}
    return Case(f"values {path}: {'; '.join(names)}", seal(files, pristine), True)


def _everywhere(random_: random.Random, pristine: Pristine) -> Case:
    """Replace one number or string in manifest and programs alike: it stays consistent."""
    old: int | str
    if random_.random() < 0.7:
        old = random_.choice(pristine.numbers)
        new: Any = _number(random_, old)
    else:
        old = random_.choice(pristine.strings)
        new = random_.choice((*_STRINGS, *pristine.strings))
    files = {
        path: json.dumps(_replaced(pristine.values[path], old, new)).encode()
        for path in (MANIFEST, PROGRAMS)
    }
    return Case(f"everywhere: {old!a:.40} to {new!a:.40}", seal(files, pristine), True)


def _replaced(value: Any, old: Any, new: Any) -> Any:
    if isinstance(value, dict):
        return {
            (new if key == old and isinstance(new, str) else key): _replaced(child, old, new)
            for key, child in value.items()
        }
    if isinstance(value, list):
        return [_replaced(child, old, new) for child in value]
    return new if type(value) is type(old) and value == old else value


def _change(random_: random.Random, values: Any, pristine: Pristine) -> str:
    """Change one place of nested values. Returns its name and what was done."""
    where: list[Any] = []
    node = values
    while True:
        key = random_.choice(list(node)) if isinstance(node, dict) else random_.randrange(len(node))
        child = node[key]
        where.append(key)
        if isinstance(child, dict | list) and child and random_.random() < 0.93:
            node = child
            continue
        break
    edit = random_.choice(_VALUE_EDITS)
    edit(random_, node, key, pristine)
    name = ".".join(ascii(part).strip("'") for part in where)
    return f"{edit.__name__.strip('_')} {name[:90]}"


def _number(random_: random.Random, old: int) -> int:
    near = (old + 1, old - 1, old * 2, old // 2, old + 16, old - 16, old + 32, old + 64, -old)
    return random_.choice((*near, *_INTEGERS))


def _other(random_: random.Random, node: Any, key: Any, pristine: Pristine) -> None:
    """Another value of the same type."""
    old = node[key]
    if isinstance(old, bool):
        node[key] = not old
    elif isinstance(old, int):
        node[key] = _number(random_, old)
    elif isinstance(old, float):
        node[key] = random_.choice((*_FLOATS, -old, old * 2, old * 1e6))
    elif isinstance(old, str):
        node[key] = random_.choice((*_STRINGS, *pristine.strings, old[:-1], old + "x"))
    else:
        _any(random_, node, key, pristine)


def _any(random_: random.Random, node: Any, key: Any, pristine: Pristine) -> None:
    choices = (None, True, False, [], {}, [1], {"a": 1}, 0.5, float("nan"), *_INTEGERS, *_STRINGS)
    node[key] = random_.choice(choices)


def _sibling(random_: random.Random, node: Any, key: Any, _: Pristine) -> None:
    """The value of a neighbour."""
    keys = list(node) if isinstance(node, dict) else range(len(node))
    node[key] = copy.deepcopy(node[random_.choice(keys)])


def _swap(random_: random.Random, node: Any, key: Any, _: Pristine) -> None:
    keys = list(node) if isinstance(node, dict) else range(len(node))
    other = random_.choice(keys)
    node[key], node[other] = node[other], node[key]


def _drop(random_: random.Random, node: Any, key: Any, _: Pristine) -> None:
    del node[key]


def _add(random_: random.Random, node: Any, key: Any, pristine: Pristine) -> None:
    value = copy.deepcopy(node[key])
    if isinstance(node, list):
        node.insert(random_.randrange(len(node) + 1), value)
    else:
        node[random_.choice((*_STRINGS, *pristine.strings))] = value


_VALUE_EDITS = (_other, _other, _other, _other, _any, _sibling, _swap, _drop, _add)
