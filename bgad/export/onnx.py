"""A trained model as one ONNX graph, from pixels to score and map."""

from __future__ import annotations

import copy
import io
import tempfile
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bgad.errors import ModelError, first_line
from bgad.inference.onnx_engine import GRAPH, PIXELS
from bgad.model.scoring import LevelModel, ScoringModel

OPSET = 17
OUTPUTS = ("score", "parts", "map")  # before one output for each level


class Graph(nn.Module):
    """The exported computation: the backbone, and the model's scoring of its feature maps with constants folded."""

    def __init__(self, model: ScoringModel) -> None:
        super().__init__()
        copied = copy.deepcopy(model).cpu().eval()
        fix_padding(copied, model.config.backbone.size)
        self.backbone, self.score = copied.backbone, copied.for_export()

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Pixels (B, S, S, 3) -> score (B,), its parts (B, 3), map (B, S, S), log p / d of each level (B, h, w)."""
        parts, anomaly_map, log_p = self.score(self.backbone(pixels))
        return (parts.sum(1), parts, anomaly_map, *log_p)


def to_onnx(model: ScoringModel) -> bytes:
    """Export the scoring model as an ONNX graph that takes any number of images at a time."""
    levels = len(model.levels) if isinstance(model, LevelModel) else 0
    names = [*OUTPUTS, *(f"level{i}" for i in range(levels))]
    return export_graph(
        Graph(model),
        model.config.backbone.size,
        output_names=names,
        dynamic_axes={name: {0: "images"} for name in (PIXELS, *names)},
        do_constant_folding=False,  # an engine folds when it loads the graph: the file stays small
    )


def export_graph(net: nn.Module, size: int, **options: Any) -> bytes:
    """Export a network that takes pixels (B, S, S, 3); ModelError where torch's exporter cannot."""
    with (
        torch.no_grad(),
        warnings.catch_warnings(),
        redirect_stdout(io.StringIO()),
        tempfile.TemporaryDirectory() as folder,
    ):
        path = Path(folder) / GRAPH
        warnings.simplefilter("ignore")  # the exporter's deprecations, and its traced sizes, which are constant here
        try:
            torch.onnx.export(
                net,
                (torch.rand(2, size, size, 3),),
                path,
                dynamo=False,  # the other exporter needs one more package, and a minute instead of a second
                input_names=[PIXELS],
                opset_version=OPSET,
                **options,
            )
        except Exception as error:
            raise ModelError(f"this model cannot be written as a graph ({first_line(error)})") from error
        return path.read_bytes()


def fix_padding(net: nn.Module, size: int) -> None:
    """Replace timm's "same" convolutions, which compute their padding from each input, by ones with fixed padding.

    One image runs through the network, and the shape of each convolution's input gives its padding.
    """
    shapes: dict[nn.Module, tuple[int, ...]] = {}
    hooks = [
        module.register_forward_pre_hook(lambda m, inputs: shapes.setdefault(m, tuple(inputs[0].shape[-2:])) and None)
        for module in net.modules()
        if type(module).__name__ == "Conv2dSame"
    ]
    with torch.no_grad():
        net(torch.zeros(1, size, size, 3))
    for hook in hooks:
        hook.remove()
    for parent in list(net.modules()):
        for name, child in parent.named_children():
            if child in shapes and isinstance(child, nn.Conv2d):
                setattr(parent, name, _with_fixed_padding(child, shapes[child]))


def _with_fixed_padding(conv: nn.Conv2d, shape: tuple[int, ...]) -> nn.Module:
    """Return a convolution that equals the "same" one for inputs of this shape."""
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
