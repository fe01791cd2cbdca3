"""A GGUF file with its 4-bit tensors stored as Q8_0, for servers that are faster on those.

python -m benchmarks.serving.eight_bit FILE.gguf OUTPUT.gguf
"""

import sys
from pathlib import Path

import gguf
from gguf.constants import GGMLQuantizationType, GGUFValueType
from gguf.quants import dequantize, quantize

KEEP = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.Q8_0)
FILE_TYPE = "general.file_type"
WRITTEN_BY_GGUF = ("general.architecture", "GGUF.version", "GGUF.tensor_count", "GGUF.kv_count")


def write_eight_bit(source: Path, output: Path) -> None:
    """Dequantise every tensor that is neither F32, F16 nor Q8_0 and store it as Q8_0."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    partial = output.with_name(output.name + ".partial")
    writer = gguf.GGUFWriter(partial, architecture)
    _copy_fields(reader, writer)
    for tensor in reader.tensors:
        kind, data = tensor.tensor_type, tensor.data
        if kind not in KEEP:
            kind = GGMLQuantizationType.Q8_0
            data = quantize(dequantize(data, tensor.tensor_type), kind)
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(output)


def _copy_fields(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for name, entry in reader.fields.items():
        if name in WRITTEN_BY_GGUF:
            continue
        kind = entry.types[0]
        inner = entry.types[-1] if kind is GGUFValueType.ARRAY else None
        value = gguf.LlamaFileType.MOSTLY_Q8_0 if name == FILE_TYPE else entry.contents()
        writer.add_key_value(name, value, kind, sub_type=inner)


if __name__ == "__main__":
    write_eight_bit(Path(sys.argv[1]), Path(sys.argv[2]))
