"""Kernel ids with parameters: how they are written, what is refused, what a launch is told."""

import pytest

from engine.errors import DeviceError
from engine.ir.program import Launch
from engine.kernels.cpu import check_launch, cpu_kernels, known_kernel
from engine.kernels.parameters import split_id, variant_id

LINEAR = "cpu.linear.q4p16.int12_g32.bf16_t32"


def test_an_id_names_its_parameters_in_order() -> None:
    written = variant_id(LINEAR, {"run": 4, "pieces": 12})
    assert written == f"{LINEAR}@pieces=12,run=4"
    assert split_id(written) == (LINEAR, {"pieces": 12, "run": 4})
    assert variant_id(LINEAR, {}) == LINEAR and split_id(LINEAR) == (LINEAR, {})


@pytest.mark.parametrize(
    "suffix",
    ["@", "@run=4,pieces=12", "@pieces=012", "@pieces=", "@pieces", "@pieces=1,pieces=1",
     "@pieces=-1", "@pieces=\u0664", "@pieces=1,", "@pieces=9999999999", "@=3@"],
)  # fmt: skip
def test_an_id_that_would_not_be_written_is_refused(suffix: str) -> None:
    with pytest.raises(DeviceError, match="expected kernel@name"):
        known_kernel(LINEAR + suffix)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (f"{LINEAR}@pieces=0", "pieces must be 1 to 256 in steps of 1, found 0"),
        (f"{LINEAR}@run=3", "run must be 2 to 8 in steps of 2, found 3"),
        (f"{LINEAR}@claim=2", "no parameter 'claim'; linear takes pieces, run, own"),
        ("cpu.rms_norm@run=2", "no parameter 'run'; rms_norm takes pieces"),
        ("cpu.paged_attention@claim=257", "claim must be 1 to 256"),
        ("cpu.nothing@pieces=2", "is not one of this CPU device's"),
    ],
)
def test_a_parameter_is_checked_by_op(kernel: str, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        known_kernel(kernel)


def test_the_catalog_entry_says_the_parameters() -> None:
    [entry] = cpu_kernels([f"{LINEAR}@pieces=12,run=4"])
    assert entry.id == f"{LINEAR}@pieces=12,run=4"
    assert entry.variant == LINEAR.removeprefix("cpu.")
    assert entry.parameters == {"layout": "q4p16", "pieces": 12, "run": 4}
    assert (entry.prompt_class, entry.generated_class) == ("bf16_t32", "int12_g32")


def test_a_variant_is_checked_like_its_kernel() -> None:
    launch = Launch("linear", "cpu.rms_norm@pieces=2", ("x", "w"), ("y",), {})
    with pytest.raises(DeviceError, match="computes rms_norm, not linear"):
        check_launch(launch)
