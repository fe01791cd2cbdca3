"""``flare verify`` replays every graph: sound cores pass, a batch that changes a row is found."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.core.errors import RowInvarianceError
from engine.device.cpu.device import CpuDevice
from engine.ranks.devices import open_device
from engine.verification import Check, verify_core
from tests.support.cores import CoreSpec, write_core


@pytest.fixture(scope="module", params=["q4p16", "q8p16", "bf16p16"])
def core(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = CoreSpec(layout=request.param)
    return write_core(tmp_path_factory.mktemp("cores") / "sound.core", spec)


GRAPHS = ["decode-1", "decode-2", "decode-4", "prefill-8", "prefill-32", "mixed-8", "mixed-32"]


def test_each_graph_of_a_sound_core_is_replayed(core: Path) -> None:
    checks = verify_core(core)
    assert all(check.passed for check in checks)
    canaries = [check for check in checks if "in one launch" in check.found]
    assert sorted(check.name for check in canaries) == sorted(GRAPHS)


def test_a_core_without_mixed_graphs_is_replayed_too(tmp_path: Path) -> None:
    core = write_core(tmp_path / "s.core", CoreSpec(mixed=(), default_mixed=False))
    names = {check.name for check in verify_core(core)}
    assert set(GRAPHS) & names == {name for name in GRAPHS if not name.startswith("mixed")}


@pytest.mark.parametrize("row", [0, -1])
def test_a_batch_that_changes_one_bit_of_a_row_is_found(
    core: Path, monkeypatch: pytest.MonkeyPatch, row: int
) -> None:
    show = CpuDevice.show

    def off_by_a_bit(self: CpuDevice, logits: NDArray[np.float32]) -> None:
        if len(logits) > 1:
            logits[row].view(np.uint32)[3] ^= 1
        show(self, logits)

    monkeypatch.setattr(CpuDevice, "show", off_by_a_bit)
    seen: list[Check] = []

    def opened(spec: Any) -> Any:
        return open_device(spec, 1, "auto")

    with pytest.raises(RowInvarianceError, match="graphs decode-2, ") as caught:
        verify_core(core, seen.append, opened)
    assert caught.value.exit_code == 3
    failed = {check.name for check in seen if not check.passed}
    assert {"decode-2", "decode-4", "mixed-8", "mixed-32"} <= failed
    assert "decode-1" not in failed
