"""The command `bgad export`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bgad.cli import console
from bgad.cli.options import add_command, add_model, add_root
from bgad.errors import ConfigError

if TYPE_CHECKING:
    from bgad.artifact.card import AgreementCard


def add_export(commands: Any) -> None:
    """Register the command."""
    from bgad.artifact.card import FLOAT32
    from bgad.inference.precision import PRECISIONS

    parser = add_command(
        commands,
        "export",
        _export,
        "Write a model's graph, which scores without torch. `train` does so too; this adds a format or a precision.",
        "The graph goes into the model folder as model.onnx: pixels in, score and map out. Its outputs are compared\n"
        "with torch on the images of --check, or on synthetic ones. It is not written when they differ.\n\n"
        "A precision below float32 is faster on a processor that computes in it, and has other scores. So --precision\n"
        "scores the calibration normals again and adds thresholds of their own, at the same false-reject rate. It is\n"
        "not added when it orders images otherwise than float32 does.\n\n"
        "examples:\n  bgad export gear.bgad\n  bgad export gear.bgad --check parts/test\n"
        "  bgad export gear.bgad --to openvino && bgad predict gear.bgad new/ --engine openvino\n"
        "  bgad export gear.bgad --precision bf16 && bgad predict gear.bgad new/ --precision bf16",
    )
    add_model(parser)
    parser.add_argument(
        "--check", nargs="+", metavar="PATH", help="images to compare on: files, folders or glob patterns"
    )
    parser.add_argument(
        "--to",
        choices=("onnx", "openvino"),
        help="openvino: model.xml and model.bin (default onnx; openvino with --precision)",
    )
    group = parser.add_argument_group("precision (needs bgad[openvino])")
    group.add_argument(
        "--precision",
        choices=[name for name in PRECISIONS if name != FLOAT32],
        help="calibrate the model for a precision, too: bf16 for CPUs that have it, f16 for GPUs",
    )
    group.add_argument(
        "--data",
        type=Path,
        metavar="DATA",
        help="the data set of the model, where the calibration normals are (default: where it was at training)",
    )
    add_root(group)
    group.add_argument(
        "--device",
        choices=("cpu", "gpu", "npu"),
        default=None,
        help="device that computes in the precision, the only one that the calibration is for (default cpu)",
    )


def _export(arguments: argparse.Namespace) -> int:
    from bgad.io import discover

    if not arguments.precision:
        given = [name for name in ("data", "root", "device") if getattr(arguments, name) is not None]
        if given:
            raise ConfigError(f"--{given[0]} is for --precision: give both, or leave it out")
    elif arguments.to == "onnx":
        raise ConfigError("ONNX Runtime computes in float32 only: leave out --to onnx with --precision")
    paths = discover.expand(arguments.check) if arguments.check else None
    if arguments.precision:
        return _add_precision(arguments, paths)
    from bgad.export.export import ExportOptions, export
    from bgad.methods.checkpoint import passing_on_provenance

    to = arguments.to or "onnx"
    with console.progress() as progress, passing_on_provenance(arguments.model):
        parity = export(arguments.model, paths, ExportOptions(to), progress)
    console.say(
        f"on {parity.images} images the graph is within {parity.score:.1e} of torch's range of scores and "
        f"{parity.map:.1e} of its range of map values (allowed: {parity.tolerance:g})"
    )
    console.say(f"graph: {arguments.model / ('model.onnx' if to == 'onnx' else 'model.xml')}")
    return 0


def _add_precision(arguments: argparse.Namespace, paths: list[Path] | None) -> int:
    from bgad.training.precision import PrecisionOptions, add_precision

    options = PrecisionOptions(data=arguments.data, root=arguments.root, device=arguments.device or "cpu")
    with console.progress() as progress:
        found = add_precision(arguments.model, arguments.precision, paths, options=options, progress=progress)
    for line in agreement_lines(found):
        console.say(line)
    console.say(f"next: bgad predict {arguments.model} IMAGE... --precision {arguments.precision}   (or auto)")
    return 0


def agreement_lines(found: AgreementCard) -> list[str]:
    """Say how a precision agrees with float32."""
    lines = [
        f"on {found.images} calibration normals and known anomalies: rank correlation {found.rank_correlation:.4f} "
        f"with float32, {found.changed_decisions} decisions change"
    ]
    for what, aurocs in (("known anomalies", found.known_auroc), ("test images", found.test_auroc)):
        if aurocs is not None:
            lines.append(f"image AUROC of {what}: {aurocs[1]:.4f}, in float32 {aurocs[0]:.4f}")
    return lines
