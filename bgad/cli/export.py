"""The command `bgad export`."""

from __future__ import annotations

import argparse
from typing import Any

from bgad.cli import console
from bgad.cli.options import add_command, add_model, number


def add_export(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "export",
        _export,
        "Write a model's graph, which scores without torch. `train` does so too; this adds a format or a precision.",
        "The graph goes into the model folder as model.onnx: pixels in, score and map out. Its outputs are compared\n"
        "with torch on the images of --check, or on synthetic ones. It is not written when they differ.\n\n"
        "examples:\n  bgad export gear.bgad\n  bgad export gear.bgad --check parts/test\n"
        "  bgad export gear.bgad --to openvino && bgad predict gear.bgad new/ --engine openvino",
    )
    add_model(parser)
    parser.add_argument(
        "--check", nargs="+", metavar="PATH", help="images to compare on: files, folders or glob patterns"
    )
    parser.add_argument("--to", choices=("onnx", "openvino"), default="onnx", help="openvino: model.xml and model.bin")
    parser.add_argument(
        "--half",
        action="store_true",
        help="store weights in 16 bits: half the file size; scores change slightly, which usually needs "
        "--tolerance 0.01",
    )
    parser.add_argument(
        "--tolerance",
        type=number(float, 0),
        default=1e-4,
        metavar="SHARE",
        help="allowed difference from torch, as a share of the range of scores (default 0.0001)",
    )


def _export(arguments: argparse.Namespace) -> int:
    from bgad.io import discover

    paths = discover.expand(arguments.check) if arguments.check else None
    from bgad.export.export import ExportOptions, export

    with console.progress() as progress:
        parity = export(
            arguments.model,
            paths,
            ExportOptions(arguments.to, arguments.half, arguments.tolerance),
            progress,
        )
    console.say(
        f"on {parity.images} images the graph is within {parity.score:.1e} of torch's range of scores and "
        f"{parity.map:.1e} of its range of map values (allowed: {parity.tolerance:g})"
    )
    console.say(f"graph: {arguments.model / ('model.onnx' if arguments.to == 'onnx' else 'model.xml')}")
    return 0
