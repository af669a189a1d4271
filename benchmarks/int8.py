"""Does an int8 backbone pay? ONNX Runtime's static quantisation of the convolutions against our float32 graph.

Prints the time of both, how far the scores move and what that does to the AUROC on the demo set's fabric.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static, shape_inference

from benchmarks import machine, record
from benchmarks.scoring import Side, seconds
from bgad import TrainOptions, metrics, train
from bgad.config import from_dict
from bgad.data import layouts
from bgad.data.sample_io import read
from bgad.data.split import Split
from bgad.data.synthetic.demo import write_demo
from bgad.inference.onnx_engine import GRAPH, PIXELS, session_options
from bgad.io import images
from bgad.io.cpus import usable_cpus
from bgad.model.device import tune_allocator
from bgad.types import FloatArray

SHORT = {"train": {"steps": 200, "push_steps": 100}}
CALIBRATION = 48  # images


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """Normals, one at a time."""

    def __init__(self, pictures: list[FloatArray]) -> None:
        self.rest: Iterator[FloatArray] = iter(pictures)

    def get_next(self) -> dict[str, FloatArray] | None:
        """As ONNX Runtime asks for them."""
        image = next(self.rest, None)
        return None if image is None else {PIXELS: image[None]}


def quantised(graph: Path, pictures: list[FloatArray]) -> Path:
    """The graph with its convolutions in int8."""
    plain, small = graph.with_name("plain.onnx"), graph.with_name("int8.onnx")
    shape_inference.quant_pre_process(graph, plain)
    quantize_static(
        plain,
        small,
        Reader(pictures),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=["Conv"],
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    return small


def side(graph: Path) -> Any:
    """A session with the options of our runtime."""
    return onnxruntime.InferenceSession(graph, session_options(usable_cpus()), providers=["CPUExecutionProvider"])


def main() -> None:
    """Measure, print, append."""
    tune_allocator()  # as the commands do, for both sides
    print(machine(), f"onnxruntime {onnxruntime.__version__}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = write_demo(folder / "data")[0]
        detector = train(
            data, folder / "model.bgad", config=from_dict(SHORT), options=TrainOptions(known=10, device="cpu")
        )
        split = Split.load(folder / "model.bgad/split.json", layouts.load(data))
        size = detector.card.config.backbone.size
        normals = [images.fit(read(s, 8), (size, size)) for s in split.train[:CALIBRATION]]
        sessions = {"float32": side(folder / "model.bgad" / GRAPH)}
        graph = folder / "copy.onnx"
        graph.write_bytes((folder / "model.bgad" / GRAPH).read_bytes())
        sessions["int8"] = side(quantised(graph, normals))
        pictures = [images.fit(read(s, 8), (size, size)) for s in split.test]
        labels = [s.label for s in split.test]
        scores = {
            name: np.array([session.run(["score"], {PIXELS: p[None]})[0][0] for p in pictures])
            for name, session in sessions.items()
        }
        moved = float(np.abs(scores["int8"] - scores["float32"]).max() / np.ptp(scores["float32"]))
        print(f"scores move by up to {moved:.3f} of their range (the check allows 0.0001)")
        for name, found in scores.items():
            print(f"{name}: image AUROC {metrics.auroc(found.tolist(), labels):.4f}")
        sides: dict[str, Side] = {
            name: lambda pixels, session=session: session.run(None, {PIXELS: pixels})  # type: ignore[misc]
            for name, session in sessions.items()
        }
        for batch in (1, 16):
            took = seconds(sides, batch, size, 6 if batch == 1 else 2)
            title = f"scoring, batch {batch}, int8 convolutions against the float32 graph"
            record(title, took["int8"], took["float32"], "s/image")


if __name__ == "__main__":
    main()
