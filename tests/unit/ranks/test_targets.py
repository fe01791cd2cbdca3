"""What a core and its kernels need of the machine is checked before a device is opened."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.config import EngineConfig
from engine.core.reader import Core, open_core
from engine.core.schema import Kernel
from engine.core.targets import kernel_id
from engine.errors import DeviceError
from engine.factory import plan_load
from engine.ranks.devices import check_targets
from engine.ranks.local import DeviceSpec, device_spec
from tests.support.cores import identity, write_core


@pytest.fixture
def core(tmp_path: Path) -> Core:
    with open_core(write_core(tmp_path / "core")) as opened:
        return opened


def spec_of(core: Core, target: Sequence[str] = (), requires: Sequence[str] = ()) -> DeviceSpec:
    """The device of a core whose kernel ``cpu.rms_norm`` requires something."""
    kernels = tuple(
        replace(kernel, requires=tuple(requires)) if kernel.op == "rms_norm" else kernel
        for kernel in core.manifest.catalog.kernels
    )
    unused = Kernel(
        "cpu.gather_rows.spare", "gather_rows", "gather_rows.spare", "cpu", {}, ("neon",)
    )
    core.manifest = replace(
        core.manifest,
        identity=identity(target=tuple(target)),
        catalog=replace(core.manifest.catalog, kernels=(*kernels, unused)),
    )
    plan = plan_load(EngineConfig(core=core.path), core.manifest)
    return device_spec(plan.ranks[0], core, plan.pruned, plan.room)


def test_what_the_path_provides_passes(core: Core) -> None:
    check_targets(spec_of(core, ("portable",), ("avx2", "avx512")), "amx")
    check_targets(spec_of(core), "portable")


def test_a_target_that_is_missing_is_named(core: Core) -> None:
    with pytest.raises(DeviceError) as caught:
        check_targets(spec_of(core, ("avx2", "amx")), "avx2")
    assert str(caught.value) == (
        "identity.target: expected amx, found portable, avx2 on this machine"
    )
    assert caught.value.exit_code == 5
    assert caught.value.hint


def test_a_kernel_in_use_that_cannot_run_is_named(core: Core) -> None:
    with pytest.raises(DeviceError, match=r"kernels.cpu.rms_norm.requires: expected amx, found"):
        check_targets(spec_of(core, requires=("avx512", "amx")), "avx512")


def test_ids_name_what_tunes_a_kernel() -> None:
    assert kernel_id("cpu", "embed.q4p16", {"layout": "q4p16"}) == "cpu.embed.q4p16"
    found = kernel_id("cpu", "linear.x", {"run": 4, "layout": "q4p16", "pieces": 12})
    assert found == "cpu.linear.x@pieces=12,run=4"
