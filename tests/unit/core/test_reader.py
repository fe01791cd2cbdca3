"""Opening cores: what is damaged, missing, foreign or tricky is a CoreError; files never change."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from engine.core.codec import decode_manifest, decode_programs
from engine.core.digests import PIECE, content_digest, file_digest, root_digest
from engine.core.errors import (
    CoreFileError,
    DigestMismatchError,
    FormatError,
    LayoutMissingError,
    StorageInvalidError,
    VersionError,
)
from engine.core.reader import open_core
from engine.core.validate import validate
from engine.errors import CoreError
from tests.support.cores import CoreSpec, weights, write_core
from tests.support.users import unprivileged

SPEC = CoreSpec(layers=1, mixed=(8,), decode=(4,), prefill=(32,))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_core(tmp_path_factory.mktemp("cores") / "tiny.core", SPEC)


@pytest.fixture
def core(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "tiny.core")
    return tmp_path / "tiny.core"


@pytest.fixture
def public(original: Path) -> Iterator[Path]:
    """A core in a folder that every user may enter; those of the tests are their user's alone."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(shutil.copytree(original, Path(folder) / "tiny.core"))


def rewrite(core: Path, edit: Callable[[dict[str, Any]], None], sign: bool = True) -> None:
    """Edit the manifest's JSON; ``sign`` makes its root digest right again."""
    path = core / "core.json"
    values = json.loads(path.read_text())
    edit(values)
    if sign:
        values["root_digest"] = root_digest(values)
    path.write_text(json.dumps(values))


def snapshot(core: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(p.relative_to(core)): (p.read_bytes(), p.stat().st_mtime_ns)
        for p in core.rglob("*")
        if p.is_file()
    }


def test_tensors_come_back_as_written_and_read_only(core: Path) -> None:
    stored = weights(SPEC)
    with open_core(core) as opened:
        opened.verify_storage()
        validate(opened.manifest)
        for name, weight in stored.items():
            array = opened.tensor(name)
            np.testing.assert_array_equal(array, weight.array)
            assert array.dtype == weight.array.dtype
            assert not array.flags.writeable
            assert array.ctypes.data % 64 == 0
        with pytest.raises(LayoutMissingError, match="rank 0 has no tensor 'none'"):
            opened.tensor("none")


def test_views_outlive_the_core(core: Path) -> None:
    with open_core(core) as opened:
        array = opened.tensor("norm")
    shutil.rmtree(core)
    np.testing.assert_array_equal(array, weights(SPEC)["norm"].array)


def test_opening_changes_nothing(core: Path) -> None:
    before = snapshot(core)
    for path in [core, *core.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    with open_core(core) as opened:
        opened.verify_storage()
        validate(opened.manifest)
    assert snapshot(core) == before


def test_programs_of_one_body_share_their_launches(core: Path) -> None:
    with open_core(core) as opened:
        programs = list(opened.manifest.catalog.programs.values())
    assert len({id(program.launches) for program in programs}) == 1
    assert len({id(program.buffers["norm"]) for program in programs}) == 1


def test_storage_loads_with_the_safetensors_library(core: Path) -> None:
    found = load_file(core / "storage" / "rank0.safetensors")
    for name, weight in weights(SPEC).items():
        np.testing.assert_array_equal(found[name], weight.array)


@pytest.mark.parametrize(
    "path", ["core.json", "programs.json", "storage/rank0.safetensors", "text/tokenizer.json"]
)
class TestDamage:
    def test_missing(self, core: Path, path: str) -> None:
        (core / path).unlink()
        with pytest.raises(CoreFileError, match=path.rsplit("/", 1)[-1]):
            open_core(core)

    def test_truncated(self, core: Path, path: str) -> None:
        size = (core / path).stat().st_size
        os.truncate(core / path, size // 2)
        with pytest.raises(CoreError) as caught:
            open_core(core)
        if path != "core.json":
            assert type(caught.value) is CoreFileError
            assert f"{path}: expected {size} bytes, found {size // 2}" in str(caught.value)

    def test_longer(self, core: Path, path: str) -> None:
        with (core / path).open("ab") as file:
            file.write(b"x")
        with pytest.raises(CoreError):
            open_core(core)

    def test_empty(self, core: Path, path: str) -> None:
        os.truncate(core / path, 0)
        with pytest.raises(CoreError):
            open_core(core)

    def test_flipped_bytes(self, core: Path, path: str) -> None:
        data = (core / path).read_bytes()
        for position in {0, len(data) // 2, len(data) - 1}:
            changed = bytearray(data)
            changed[position] ^= 1
            (core / path).write_bytes(changed)
            if path == "core.json" and position == len(data) - 1:
                continue  # the newline after the last brace: white space has no meaning
            with pytest.raises(CoreError), open_core(core) as opened:
                opened.verify_storage()

    def test_symbolic_link(self, core: Path, path: str, tmp_path: Path) -> None:
        """H58: a link leads out of the core."""
        (core / path).rename(tmp_path / "elsewhere")
        (core / path).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(CoreFileError, match="symbolic link"):
            open_core(core)

    def test_directory(self, core: Path, path: str) -> None:
        (core / path).unlink()
        (core / path).mkdir()
        with pytest.raises(CoreFileError, match="expected a regular file"):
            open_core(core)

    def test_unreadable(self, public: Path, path: str) -> None:
        (public / path).chmod(0)
        with unprivileged(), pytest.raises(CoreFileError, match="cannot be read"):
            open_core(public)


def test_a_flipped_storage_byte_names_the_file(core: Path) -> None:
    path = core / "storage" / "rank0.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 0xFF
    path.write_bytes(data)
    opened = open_core(core)
    with pytest.raises(DigestMismatchError, match=r"storage/rank0\.safetensors: digest: expected"):
        opened.verify_storage()


def test_linked_folder_is_refused(core: Path, tmp_path: Path) -> None:
    (core / "storage").rename(tmp_path / "elsewhere")
    (core / "storage").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CoreFileError, match="symbolic link"):
        open_core(core)


def test_a_link_to_the_core_itself_is_fine(core: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(core)
    with open_core(tmp_path / "link") as opened:
        opened.verify_storage()


def test_other_files_have_no_meaning(core: Path) -> None:
    (core / "notes.txt").write_text("hello")
    (core / "text" / "extra.json").write_text("{}")
    with open_core(core) as opened:
        opened.verify_storage()
        paths = [section.path for section in opened.manifest.sections]
    assert not {"notes.txt", "text/extra.json"} & set(paths)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/hostname", "../outside", "text/../../outside", "text//a", "text/./a", "./text/a",
        "text/.hidden", "text/a\x00b", "text/a\nb", "text/\udcff", "text/", "", "text/" + "a" * 300,
        "C:\\a", "text\\a",
    ],
)  # fmt: skip
def test_paths_stay_inside(core: Path, path: str) -> None:
    """H58: names in a core's manifest."""
    (core.parent / "outside").write_bytes(b"{}")

    def edit(values: dict[str, Any]) -> None:
        next(s for s in values["sections"] if s["path"].startswith("text/"))["path"] = path

    rewrite(core, edit)
    with pytest.raises((CoreFileError, FormatError), match=r"path|no part of a core"):
        open_core(core)


def test_storage_may_not_name_another_file(core: Path) -> None:
    rewrite(core, lambda values: values["storage"][0].update(file="../outside"))
    with pytest.raises(StorageInvalidError, match="file: expected"):
        open_core(core)


@pytest.mark.parametrize("folder", [".", "text", "storage"])
def test_a_folder_that_cannot_be_entered_is_named(public: Path, folder: str) -> None:
    (public / folder).chmod(0)
    with unprivileged(), pytest.raises(CoreFileError, match="Permission denied"):
        open_core(public)


@pytest.mark.parametrize("version", [0, 3, 99, -1])
def test_unknown_versions_name_the_window(core: Path, version: int) -> None:
    rewrite(core, lambda values: values.update(format_version=version, something_new=True))
    with pytest.raises(VersionError, match=f"expected 1 to 2, found {version}") as caught:
        open_core(core)
    assert caught.value.hint


@pytest.mark.parametrize("version", [None, "1", 1.0, True, [1]])
def test_versions_of_another_type_are_refused(core: Path, version: object) -> None:
    rewrite(core, lambda values: values.update(format_version=version))
    with pytest.raises(FormatError, match=r"format_version: expected an integer"):
        open_core(core)


def test_a_changed_manifest_is_noticed(core: Path) -> None:
    rewrite(core, lambda values: values["limits"].update(max_num_seqs=3), sign=False)
    with pytest.raises(DigestMismatchError, match="root_digest: expected"):
        open_core(core)


EDITS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "unknown key": (lambda v: v.update(extra=1), "extra: expected no such key"),
    "unknown nested key": (lambda v: v["model"].update(extra=1), "model.extra: expected no such"),
    "missing key": (lambda v: v.pop("limits"), "limits: expected a value, found nothing"),
    "missing nested key": (lambda v: v["graphs"][0].pop("kind"), r"graphs\[0\].kind: expected a"),
    "unknown kind": (
        lambda v: v["graphs"][1].update(kind="magic"),
        r"graphs\[1\].kind: expected one of prefill, decode, verify, draft, mixed, found 'magic'",
    ),
    "unknown device": (lambda v: v["identity"].update(device="tpu"), "device: expected one of cpu"),
    "string for number": (lambda v: v["limits"].update(max_num_seqs="4"), "expected an integer"),
    "boolean for number": (lambda v: v["limits"].update(max_num_seqs=True), "found True"),
    "float for integer": (lambda v: v["limits"].update(max_num_seqs=4.0), "found 4.0"),
    "number for boolean": (lambda v: v.update(default_mixed=1), "expected true or false, found 1"),
    "null": (lambda v: v["model"].update(id=None), "model.id: expected a string, found None"),
    "object for array": (lambda v: v.update(graphs={}), "graphs: expected an array"),
    "array for object": (lambda v: v.update(model=[]), "model: expected an object"),
    "huge integer": (lambda v: v["limits"].update(max_num_seqs=2**63), "integer below 2"),
    "element of an array": (
        lambda v: v["graphs"][0]["kernels"].__setitem__(0, 5), r"graphs\[0\].kernels\[0\]",
    ),
    "setting": (
        lambda v: v["identity"].update(settings={"a": [1]}), r"identity.settings.a: expected",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_the_schema_is_strict(core: Path, name: str) -> None:
    edit, message = EDITS[name]
    rewrite(core, edit)
    with pytest.raises(FormatError, match=message):
        open_core(core)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"default_mixed": true', '"default_mixed": true, "default_mixed": true', "one value per"),
        ('"rope_theta": 10000.0', '"rope_theta": NaN', "expected finite numbers, found NaN"),
        ('"rope_theta": 10000.0', '"rope_theta": -Infinity', "expected finite numbers"),
        ('"rope_theta": 10000.0', '"rope_theta": 1e999', "expected finite numbers"),
        ('"rope_theta": 10000.0', '"rope_theta": ' + "9" * 5000, "expected"),
        ('"default_mixed": true', '"default_mixed": tru', "expected JSON"),
        ('"default_mixed": true', '"default_mixed": ' + "[" * 100000, "expected JSON"),
        ('"default_mixed": true', '"default_mixed": ' + "[" * 980 + "]" * 980, "expected"),
        ("{", "\ufeff{", "expected JSON"),
    ],
)
def test_json_is_strict(core: Path, old: str, new: str, message: str) -> None:
    path = core / "core.json"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(FormatError, match=message):
        open_core(core)


def test_a_key_twice_among_many_is_found_at_once(core: Path) -> None:
    members = ", ".join(f'"k{i}": 0' for i in range(50_000))
    (core / "core.json").write_text(f'{{{members}, "k49999": 1}}')
    with pytest.raises(FormatError, match="'k49999': expected one value per key"):
        open_core(core)


@pytest.mark.parametrize("depth", range(900, 1000))
def test_nesting_of_any_depth_is_refused(core: Path, depth: int) -> None:
    text = '{"format_version": 2, "a": ' + "[" * depth + "]" * depth + "}"
    with pytest.raises(CoreError):
        decode_manifest(text.encode())


def test_a_link_to_itself_is_refused(core: Path) -> None:
    (core / "programs.json").unlink()
    (core / "programs.json").symlink_to("programs.json")
    with pytest.raises(CoreFileError, match=r"programs\.json: .* found a symbolic link"):
        open_core(core)


def test_pipes_are_refused_without_waiting(core: Path) -> None:
    for path in ("core.json", "programs.json", "text/tokenizer.json"):
        (core / path).rename(core.parent / "aside")
        os.mkfifo(core / path)
        with pytest.raises(CoreFileError, match="expected a regular file"):
            open_core(core)
        (core.parent / "aside").rename(core / path)


def test_names_in_messages_are_fit_for_a_terminal(core: Path) -> None:
    rewrite(core, lambda values: values["graphs"][0].update(id="a\x1b[2J\nb", program="x" * 9000))
    with open_core(core) as opened, pytest.raises(CoreError, match=r"a\\x1b\[2J\\nb") as caught:
        validate(opened.manifest)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 3000


def test_text_comes_from_the_bytes_that_were_checked(core: Path) -> None:
    (core / "text" / "not-listed.json").write_text("{}")
    with open_core(core) as opened:
        (core / "text" / "tokenizer.json").write_text("changed")
        assert opened.text_files() == {"tokenizer.json": b"{}"}


def test_a_manifest_that_is_no_text_is_refused(core: Path) -> None:
    (core / "core.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match="expected JSON"):
        open_core(core)


@pytest.mark.parametrize("value", [[], 5, None, "core", {}])
def test_a_manifest_of_another_shape_is_refused(core: Path, value: object) -> None:
    (core / "core.json").write_text(json.dumps(value))
    with pytest.raises(FormatError):
        open_core(core)


def test_paths_that_are_no_core(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "none", tmp_path / "file", Path("a\x00b")):
        with pytest.raises(CoreFileError):
            open_core(path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(CoreFileError):
        open_core(tmp_path / "loop")


def test_large_files_hash_in_pieces(tmp_path: Path) -> None:
    for size in (0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 17):
        data = np.random.default_rng(size).bytes(size)
        path = tmp_path / "file"
        path.write_bytes(data)
        assert file_digest(path) == content_digest(data)
    changed = bytearray(data)
    changed[2 * PIECE] ^= 1
    assert content_digest(bytes(changed)) != content_digest(data)


class TestFuzz:
    """Whatever the bytes are, decoding them ends in a value or a CoreError."""

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def test_mutated_bytes(self, original: Path, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(["core.json", "programs.json"]))
        content = bytearray((original / name).read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            start = data.draw(st.integers(0, len(content)))
            end = start + data.draw(st.integers(0, 40))
            content[start:end] = data.draw(st.binary(max_size=12))
        decode = decode_manifest if name == "core.json" else decode_programs
        try:
            decode(bytes(content))
        except CoreError:
            return

    @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def test_mutated_values(self, original: Path, data: st.DataObject) -> None:
        """A signed manifest with one value replaced: decode and validate it as far as it goes."""
        values = json.loads((original / "core.json").read_text())
        node: Any = values
        while True:
            keys = list(node) if isinstance(node, dict) else range(len(node))
            key = data.draw(st.sampled_from(list(keys)))
            child = node[key]
            if isinstance(child, dict | list) and child and data.draw(st.booleans()):
                node = child
                continue
            break
        node[key] = data.draw(_JSON)
        values["root_digest"] = root_digest(values)
        programs = decode_programs((original / "programs.json").read_bytes())
        try:
            validate(decode_manifest(json.dumps(values).encode(), programs))
        except CoreError:
            return


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["decode", "mixed", "cpu.rms_norm", "F32", "plain", "embed"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)
