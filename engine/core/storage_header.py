"""The header of a storage file against the storage table: both must say the same of each tensor."""

from collections.abc import Iterable
from typing import Any

from engine.core.errors import StorageInvalidError
from engine.core.safetensors import PADDING
from engine.core.schema import StorageTensor
from engine.core.strict import parse_json, shown

LENGTH = 8
"""Bytes of the header's length, little endian, before the header."""
METADATA = "__metadata__"


def check_header(path: str, data: memoryview, tensors: Iterable[StorageTensor]) -> None:
    """Compare the header of the file ``data`` with the table's ``tensors`` of that file.

    Raises StorageInvalidError or FormatError with the key, and what is expected and found.
    """
    length = int.from_bytes(data[:LENGTH], "little")
    if len(data) < LENGTH or length > len(data) - LENGTH:
        raise StorageInvalidError(
            f"{path}: header: expected within {len(data)} bytes, found a length of {length}"
        )
    header = parse_json(bytes(data[LENGTH : LENGTH + length]), f"{path}: header")
    if type(header) is not dict:
        raise StorageInvalidError(f"{path}: header: expected an object, found {shown(header)}")
    expected = {tensor.name: _entry(tensor, LENGTH + length) for tensor in tensors}
    for name, entry in expected.items():
        _same(f"{path}: header.{shown(name)[1:-1]}", entry, header.get(name))
    for name in header:
        if name not in expected and name != METADATA and not name.startswith(PADDING):
            raise StorageInvalidError(
                f"{path}: header.{shown(name)[1:-1]}: expected a tensor of the storage table, "
                "found one that it does not have"
            )


def _entry(tensor: StorageTensor, start: int) -> dict[str, Any]:
    """What the header must say. start: of the data, in the file."""
    first = tensor.offset - start
    offsets = [first, first + tensor.size]
    return {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": offsets}


def _same(where: str, expected: dict[str, Any], found: Any) -> None:
    if type(found) is not dict:
        what = "nothing" if found is None else shown(found)
        raise StorageInvalidError(
            f"{where}: expected the tensor of the storage table, found {what}"
        )
    for key in sorted(expected.keys() | found.keys()):
        # 1.0 and true equal 1, but are no sizes: compare what was written
        if repr(expected.get(key)) != repr(found.get(key)):
            raise StorageInvalidError(
                f"{where}.{key}: expected {_shown(expected.get(key))}, "
                f"found {_shown(found.get(key))}"
            )


def _shown(value: Any) -> str:
    """Numbers of an array are told, not counted."""
    text = ascii(value)
    return "nothing" if value is None else text if len(text) <= 80 else f"{text[:80]}..."
