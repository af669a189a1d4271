"""The command `bgad update`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bgad.cli import console
from bgad.cli.options import add_command, add_model


def add_update(commands: Any) -> None:
    """Register the command `update`."""
    parser = add_command(
        commands,
        "update",
        _update,
        "Teach a model new good parts and new defects, starting from its weights. Takes a fraction of a training.",
        "Training continues from the model's flows on the old and the new images, so the images of the training must\n"
        "still exist (--data, if they have moved). The threshold is calibrated again.\n"
        "A model of bgad-distance has no flows and cannot be updated: train anew with all images.\n\n"
        "examples:\n  bgad update gear.bgad --bad misses/ --masks misses-masks/\n"
        "  bgad update gear.bgad --good false-alarms/ --bad misses/ --out gear-2.bgad",
    )
    add_model(parser)
    parser.add_argument("--good", nargs="+", default=[], metavar="PATH", help="new good parts")
    parser.add_argument("--bad", nargs="+", default=[], metavar="PATH", help="new bad parts")
    parser.add_argument(
        "--masks",
        type=Path,
        metavar="DIR",
        help="masks of the defects of --bad: for each image a file of the same path or name",
    )
    parser.add_argument(
        "--ignore",
        type=Path,
        metavar="DIR",
        help="masks of pixels to ignore in --good and --bad (all that is not black): for each image a file of the same "
        "path or name",
    )
    parser.add_argument(
        "--data", type=Path, metavar="DATA", help="the folder, manifest or data set of the training, if it has moved"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="(default: MODEL-taught.bgad)")
    parser.add_argument(
        "--false-reject-rate",
        type=float,
        metavar="RATE",
        help="share of good parts that may be rejected (default: the model's, or the smallest that the data supports)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing model")
    parser.add_argument("--resume", action="store_true", help="continue a run that was stopped")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, mps")


def _update(arguments: argparse.Namespace) -> int:
    from bgad.model.device import tune_allocator
    from bgad.training.update import UpdateOptions, new_images, update

    tune_allocator()
    new = new_images(arguments.good, arguments.bad, arguments.masks, arguments.ignore)
    options = UpdateOptions(
        data=arguments.data,
        false_reject_rate=arguments.false_reject_rate,
        device=arguments.device,
        resume=arguments.resume,
        overwrite=arguments.overwrite,
    )
    with console.progress() as progress, console.stop_on_interrupt() as stop:
        update(arguments.model, new, arguments.out, options=options, progress=progress, stop=stop)
    return 0
