"""The Q8_0 copy of a GGUF file: the same fields, the same values to within half a step."""

from pathlib import Path

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize

from benchmarks.serving.eight_bit import write_eight_bit


def test_four_bit_tensors_become_eight_bit_and_all_else_stays(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    packed = quantize(values, Type.Q4_1)
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    writer.add_tensor("w", packed, raw_dtype=Type.Q4_1)
    writer.add_tensor("norm", values[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    write_eight_bit(tmp_path / "a.gguf", tmp_path / "b.gguf")

    copy = gguf.GGUFReader(tmp_path / "b.gguf")
    assert copy.fields["general.architecture"].contents() == "llama"
    assert copy.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
    assert copy.fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_Q8_0
    weight, norm = copy.tensors
    assert (weight.tensor_type, norm.tensor_type) == (Type.Q8_0, Type.F32)
    assert np.array_equal(norm.data, values[0])
    exact = dequantize(packed, Type.Q4_1)
    step = np.abs(exact).reshape(4, 2, 32).max(-1, keepdims=True) / 127
    error = np.abs(dequantize(weight.data, Type.Q8_0) - exact).reshape(4, 2, 32)
    assert (error <= 0.51 * step).all()
