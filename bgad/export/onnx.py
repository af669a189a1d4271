"""A trained model as one ONNX graph: from pixels to score and map, and the proof that it says the same as torch."""

from __future__ import annotations

import copy
import io
import json
import logging
import math
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bgad.artifact import folder as model_folder
from bgad.errors import BgadError, ConfigError, ModelError, first_line
from bgad.inference import openvino_engine
from bgad.inference.base import BaseScorer
from bgad.inference.onnx_engine import GRAPH, PIXELS, Runtime, engine_version
from bgad.inference.torch_engine import Detector
from bgad.model.scoring import Level, ScoringModel
from bgad.model.scoring_flow import ScoringFlow
from bgad.model.weights import weight_files
from bgad.types import FloatArray, ImageLike, Progress, ProgressTask

logger = logging.getLogger(__name__)

TOLERANCE = 1e-4  # of the range of the scores, or of the map's values
OPSET = 17
FORMATS = ("onnx", "openvino")
SMALL = 64  # numbers; weights with fewer stay as they are where others are halved
CHECKED = 4  # pictures at a time


@dataclass(frozen=True)
class Parity:
    """How far a graph is from torch at most, over some pictures, as shares of the range of scores and map values."""

    pictures: int
    score: float
    map: float
    tolerance: float = TOLERANCE

    @property
    def holds(self) -> bool:
        """Whether both are within the tolerance."""
        return self.score <= self.tolerance and self.map <= self.tolerance


class Graph(nn.Module):
    """What is exported: the model's own backbone, fusion and score around levels with constant positions."""

    def __init__(self, model: ScoringModel) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).cpu().eval()
        fix_padding(self.model.backbone, model.config.backbone.size)
        levels: list[Level] = list(self.model.levels)  # type: ignore[arg-type]
        self.flows = nn.ModuleList(ScoringFlow(x.flow, x.position, x.grid, x.mean, x.std) for x in levels)

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Pixels (B, S, S, 3) -> score (B,), map (B, S, S), then log p / d of each level (B, h, w)."""
        maps = self.model.backbone(pixels)
        log_p = [flow(features) for flow, features in zip(self.flows, maps, strict=False)]
        summed = [maps[i].flatten(2).transpose(1, 2) for i in self.model.image_head_maps]
        score, anomaly = self.model.score_likelihoods(log_p, summed)
        return (score, anomaly, *log_p)


def to_onnx(model: ScoringModel) -> bytes:
    """The graph, with any number of pictures at a time."""
    graph = Graph(model)
    names = [*OUTPUTS, *(f"level{i}" for i in range(len(graph.flows)))]
    size = model.config.backbone.size
    with (
        torch.no_grad(),
        warnings.catch_warnings(),
        redirect_stdout(io.StringIO()),
        tempfile.TemporaryDirectory() as folder,
    ):
        path = Path(folder) / GRAPH
        warnings.simplefilter("ignore")  # the exporter's own deprecations, and traced sizes, which are fixed here
        write_graph(
            graph,
            (torch.rand(2, size, size, 3),),
            path,
            dynamo=False,  # needs no further package, and takes a second instead of a minute
            input_names=[PIXELS],
            output_names=names,
            dynamic_axes={name: {0: "pictures"} for name in (PIXELS, *names)},
            opset_version=OPSET,
            do_constant_folding=False,  # the engine folds when it loads: the file stays small
        )
        return path.read_bytes()


OUTPUTS = ("score", "map")


def write_graph(*given: Any, **options: Any) -> None:
    """torch's exporter; what it cannot do is one line."""
    try:
        torch.onnx.export(*given, **options)
    except Exception as error:
        raise ModelError(f"this model cannot be written as a graph ({first_line(error)})") from error


def export(
    folder: Path,
    pictures: Sequence[ImageLike] | None = None,
    *,
    to: str = "onnx",
    half: bool = False,
    tolerance: float = TOLERANCE,
    progress: Progress | None = None,
) -> Parity:
    """Write the graph into a model folder and its parity into the card; ModelError where it differs from torch.

    `pictures` are compared one by one; without them, made ones are. `half` keeps the weights in 16 bits, which halves
    the file and moves the scores a little: give the tolerance that you can live with.
    """
    detector = Detector.load(folder, "cpu")
    card, files = model_folder.contents(folder)
    made, parity = checked_graph(detector, pictures, to=to, half=half, tolerance=tolerance, progress=progress)
    data = {key: value for key, value in card.data.items() if key != "split"}  # format 1 had it there
    split = json.dumps(card.split, indent=1).encode()
    files = {model_folder.SPLIT: split, **files, **weight_files(detector.model), **made}
    exports = {**data.get("export", {}), to: about(parity, to, half)}
    model_folder.write(folder, data | {"export": exports}, files)
    return parity


def checked_graph(
    detector: Detector,
    pictures: Sequence[ImageLike] | None = None,
    *,
    to: str = "onnx",
    half: bool = False,
    tolerance: float = TOLERANCE,
    progress: Progress | None = None,
) -> tuple[dict[str, bytes], Parity]:
    """The files of a detector's graph, and how it compares; ModelError where they differ."""
    if to not in FORMATS:
        raise ConfigError(f"unknown format {to!r}: choose from {', '.join(FORMATS)}")
    graph = to_onnx(detector.model)
    scorer: BaseScorer
    if to == "openvino":
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / GRAPH
            path.write_bytes(graph)
            files = openvino_engine.convert(path, Path(folder), half=half)
        scorer = openvino_engine.OpenVino(detector.card, *files.values(), device="cpu")
    else:
        files = {GRAPH: halved(graph) if half else graph}
        scorer = Runtime(detector.card, files[GRAPH], device="cpu")
    parity = replace(compare(detector, scorer, pictures, progress), tolerance=tolerance)
    if not parity.holds:
        raise ModelError(
            f"the exported graph differs from torch by {max(parity.score, parity.map):.1e} of the range over "
            f"{parity.pictures} pictures, more than {parity.tolerance:g}: "
            + ("leave out --half, or raise --tolerance" if half else "score with torch (--engine torch)")
        )
    return files, parity


def halved(graph: bytes) -> bytes:
    """The graph with its large weights in 16 bits; the engine makes 32 bits of them when it loads it."""
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.load_from_string(graph)
    casts = []
    for stored in model.graph.initializer:
        values = numpy_helper.to_array(stored)
        if values.dtype != np.float32 or values.size < SMALL or np.abs(values).max() > np.finfo(np.float16).max:
            continue
        name = stored.name
        stored.CopyFrom(numpy_helper.from_array(values.astype(np.float16), f"{name}.half"))
        casts.append(helper.make_node("Cast", [f"{name}.half"], [name], to=onnx.TensorProto.FLOAT))
    for node in reversed(casts):
        model.graph.node.insert(0, node)
    content: bytes = model.SerializeToString()
    return content


def about(parity: Parity, to: str = "onnx", half: bool = False) -> dict[str, Any]:
    """For the card."""
    engine = engine_version() if to == "onnx" else openvino_engine.version()
    return {"half": half, "parity": asdict(parity), "torch": torch.__version__, "engine": engine}


def compare(
    detector: Detector,
    runtime: BaseScorer,
    pictures: Sequence[ImageLike] | None = None,
    progress: Progress | None = None,
) -> Parity:
    """Run both on the same pixels: of pictures, prepared as for scoring, or made ones.

    The range of the scores is that of the held-out normals, or how far a picture's score lies from their mean where
    that is more: one outlandish picture must not make the others look alike.
    """
    held_out = np.array(detector.card.calibration["scores"])
    centre, spread, apart = held_out.mean(), max(float(np.ptp(held_out)), 1e-12), 0.0
    map_low, map_high, map_apart, count = np.inf, -np.inf, 0.0, 0
    made = probes(detector.card.size) if pictures is None else []
    task = ProgressTask(progress, "comparing the graph with torch", len(pictures or made))
    for pixels in _batches(_told(made, task) if pictures is None else _inputs(detector, pictures, task)):
        ours, our_maps, _ = detector.run(pixels)
        theirs, their_maps, _ = runtime.run(pixels)
        if not (np.isfinite(theirs).all() and np.isfinite(their_maps).all()):
            apart = map_apart = math.inf
        map_low, map_high = min(map_low, float(our_maps.min())), max(map_high, float(our_maps.max()))
        apart = max(apart, float((np.abs(ours - theirs) / np.maximum(np.abs(ours - centre), spread)).max()))
        map_apart = max(map_apart, float(np.abs(our_maps - their_maps).max()))
        count += len(pixels)
    if not count:
        raise ModelError("there is no picture to compare the exported graph with torch on")
    return Parity(count, apart, map_apart / max(map_high - map_low, 1e-12))


def _inputs(detector: Detector, pictures: Sequence[ImageLike], task: ProgressTask) -> Iterator[FloatArray]:
    """What the model sees of those that can be read."""
    for picture in pictures:
        try:
            yield from (pixels for _, pixels in detector.inputs(picture)[1])
        except BgadError as error:
            logger.warning(str(error))
        task.advance()


def _told(made: Sequence[FloatArray], task: ProgressTask) -> Iterator[FloatArray]:
    for pixels in made:
        yield pixels
        task.advance()


def _batches(source: Iterator[FloatArray]) -> Iterator[FloatArray]:
    while batch := list(islice(source, CHECKED)):
        yield np.stack(batch)


def probes(size: int, seed: int = 0) -> Sequence[FloatArray]:
    """Made pictures of many kinds: flat, ramps, noise of several grains."""
    rng = np.random.default_rng(seed)
    ramp = np.linspace(0, 1, size, dtype=np.float32)
    flat = [np.full((size, size, 3), value, np.float32) for value in (0.0, 0.5, 1.0)]
    ramps = [np.broadcast_to(values, (size, size, 3)).copy() for values in (ramp[None, :, None], ramp[:, None, None])]
    grains = [
        F.interpolate(torch.from_numpy(rng.random((1, 3, n, n), np.float32)), size=(size, size), mode="bilinear")[0]
        for n in (2, 4, 8, 16, 32, 64, size)
    ]
    return [*flat, *ramps, *(grain.permute(1, 2, 0).numpy() for grain in grains)]


def fix_padding(net: nn.Module, size: int) -> None:
    """timm's "same" convolutions work out their padding from the picture, which an exported graph need not do.

    Runs a picture through, and notes what each of them padded.
    """
    found: dict[nn.Module, tuple[int, ...]] = {}
    hooks = [
        module.register_forward_pre_hook(lambda m, inputs: found.setdefault(m, tuple(inputs[0].shape[-2:])) and None)
        for module in net.modules()
        if type(module).__name__ == "Conv2dSame"
    ]
    with torch.no_grad():
        net(torch.zeros(1, size, size, 3))
    for hook in hooks:
        hook.remove()
    for parent in list(net.modules()):
        for name, child in parent.named_children():
            if child in found and isinstance(child, nn.Conv2d):
                setattr(parent, name, _padded(child, found[child]))


def _padded(conv: nn.Conv2d, shape: tuple[int, ...]) -> nn.Module:
    """A plain convolution that gives what the "same" one gives for inputs of this shape."""
    sides = []
    for length, kernel, stride, dilation in zip(shape, conv.kernel_size, conv.stride, conv.dilation, strict=True):
        total = max(0, (-(-length // stride) - 1) * stride + (kernel - 1) * dilation + 1 - length)
        sides.append((total // 2, total - total // 2))
    (top, bottom), (left, right) = sides
    plain = nn.Conv2d(
        conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride, 0, conv.dilation, conv.groups,  # type: ignore[arg-type]
        bias=conv.bias is not None,
    )  # fmt: skip
    plain.load_state_dict(conv.state_dict())
    if (top, left) == (bottom, right):
        plain.padding = (top, left)
        return plain
    return nn.Sequential(nn.ZeroPad2d((left, right, top, bottom)), plain)
