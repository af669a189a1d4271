"""Conversion of an ONNX graph to the files that OpenVINO reads."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bgad.inference.onnx_engine import GRAPH
from bgad.inference.openvino_engine import BIN, XML, core


def to_openvino(graph: bytes) -> dict[str, bytes]:
    """Convert an ONNX graph; return the content of each file by name."""
    core()  # raises ModelError where OpenVINO is not installed
    import openvino

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / GRAPH).write_bytes(graph)
        openvino.save_model(openvino.convert_model(folder / GRAPH), folder / XML, compress_to_fp16=False)
        return {name: (folder / name).read_bytes() for name in (XML, BIN)}
