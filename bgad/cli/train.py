"""The command `bgad train`."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from bgad.cli import console
from bgad.cli.options import (
    DATA_HELP,
    add_cluster_tasks,
    add_command,
    add_data,
    add_max_unreadable,
    add_recipe,
    add_tile,
    number,
    on_cluster,
    read_config,
)
from bgad.io.files import check_folder


def add_train(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "train",
        _train,
        "Train a model on a folder of images. Part of the normals is held out to calibrate the threshold.",
        DATA_HELP + "\nexamples:\n  bgad train parts/\n  bgad train parts/ --false-reject-rate 0.01 --out gear.bgad\n"
        "  bgad train parts/ --resume        (after Ctrl-C or a crash)\n"
        "  bgad train elpv --known 10 --test 0.25\n  bgad train mvtec/screw --root ~/data",
    )
    add_data(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="model folder to write (default: ./NAME.bgad)")
    parser.add_argument(
        "--known",
        type=number(int, 0),
        metavar="N",
        help="number of known anomalies to train on, drawn by seed; the others stay for the test (default: all "
        "outside the test split, or 10 where all are inside it, as in the MVTec layout; `evaluate` leaves those out)",
    )
    parser.add_argument(
        "--test",
        type=number(float, 0, 1),
        default=0.0,
        metavar="SHARE",
        help="share of the normals to keep for `evaluate`, where the data has no test split (default 0)",
    )
    parser.add_argument(
        "--split",
        type=Path,
        metavar="FILE",
        help="file that gives every image its role, such as the split.json of another model; replaces --known "
        "and --test",
    )
    parser.add_argument(
        "--false-reject-rate",
        type=float,
        metavar="RATE",
        help="share of good parts that may be rejected (default 0.05, or, without --confidence, the smallest that the "
        "data supports)",
    )
    parser.add_argument(
        "--confidence",
        type=float,
        metavar="SHARE",
        help="confidence, such as 0.9, with which the false-reject rate holds for the model at hand; without it, the "
        "rate holds on average over models. It needs more calibration normals: 45 in place of 19 for 0.05",
    )
    add_recipe(parser)
    parser.add_argument(
        "--roi",
        type=Path,
        metavar="FILE",
        help="region of interest, for training and scoring: an image of the same size (black is ignored), or a JSON "
        "file with polygons; not for the paper's methods, which crop images",
    )
    add_tile(parser, "cut images into tiles of this side, for defects that are too small in the whole image")
    _add_run_options(parser)


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that change how a training runs, not its result."""
    group = parser.add_argument_group("run")
    group.add_argument("--device", default="auto", help="auto (CUDA or MPS where available), cpu, cuda, mps")
    group.add_argument(
        "--memory",
        type=number(float, 0),
        default=4.0,
        metavar="GB",
        help="memory for cached features; the rest goes to disk (default 4)",
    )
    add_max_unreadable(group)
    group.add_argument("--resume", action="store_true", help="continue a run that was stopped")
    group.add_argument("--overwrite", action="store_true", help="replace an existing model folder")
    group.add_argument("--tensorboard", type=Path, metavar="DIR", help="also log to TensorBoard")
    group.add_argument(
        "--no-export", action="store_true", help="do not write model.onnx; the model then needs torch to score"
    )
    add_cluster_tasks(
        parser,
        "the nodes extract the features of the normals, which pays from about 100,000 normals on; they must see the "
        "images and --out under the same paths",
    )


def _train(arguments: argparse.Namespace) -> int:
    config = read_config(arguments)
    if arguments.tile is not None:
        from bgad.model.backbone import resolve

        config = resolve(config)
        size = arguments.tile or config.backbone.size
        config = replace(config, tile=replace(config.tile, size=size)).check()
    if arguments.tensorboard:
        check_folder(arguments.tensorboard)
    from bgad.data.layouts import model_folder
    from bgad.model.device import tune_allocator
    from bgad.training.pipeline import TrainOptions, train
    from bgad.types import RunControl

    tune_allocator()
    options = TrainOptions(
        root=arguments.root,
        known=arguments.known,
        test_share=arguments.test,
        split=arguments.split,
        false_reject_rate=arguments.false_reject_rate,
        confidence=arguments.confidence,
        device=arguments.device,
        memory_gb=arguments.memory,
        max_unreadable=arguments.max_unreadable,
        resume=arguments.resume,
        overwrite=arguments.overwrite,
        tensorboard=arguments.tensorboard,
        export=not arguments.no_export,
        roi=arguments.roi,
    )
    with on_cluster(arguments) as resources, console.progress() as progress, console.stop_on_interrupt() as stop:
        if resources is None:
            detector = train(
                arguments.data, arguments.out, config=config, options=options, progress=progress, stop=stop
            )
        else:
            from bgad.cluster.training import train as train_on_cluster

            control = RunControl(progress, stop)
            detector = train_on_cluster(arguments.data, arguments.out, config, options, resources, control)
    console.say(_next_step(arguments, model_folder(arguments.data), detector.card.split))
    return 0


def _next_step(arguments: argparse.Namespace, default_model: Path, split: dict[str, Any]) -> str:
    """Return the commands that go on with the model; `evaluate` only where its split leaves images for it."""
    model, data = quote(str(arguments.out or default_model)), quote(str(arguments.data))
    if any(image["role"] == "test" for image in split["images"]):
        where = f" --root {quote(str(arguments.root))}" if arguments.root else ""
        return f"next: bgad predict {model} IMAGE...   or   bgad evaluate {model} {data}{where}"
    return (
        f"next: bgad predict {model} IMAGE...   (no image is left for `bgad evaluate`: give it other data, or train "
        "with --test 0.25)"
    )
