"""The command `bgad pseudo`."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from bgad.cli import console
from bgad.cli.options import DATA_HELP, add_command, add_data, add_max_unreadable, add_recipe, number, read_config
from bgad.config import PSEUDO_METHODS, preset_for
from bgad.errors import DataError
from bgad.io.files import check_file
from bgad.types import ProgressTask


def add_pseudo(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "pseudo",
        _pseudo,
        "Draw a contact sheet of the pseudo anomalies that training would use.",
        DATA_HELP
        + "\nmethods (--set pseudo.method=NAME):\n"
        + "".join(f"  {name:<10} {text}\n" for name, text in PSEUDO_METHODS.items() if name != "none")
        + "\nexamples:\n  bgad pseudo gears\n  bgad pseudo gears --count 60 --set pseudo.method=nsa --out nsa.png",
    )
    add_data(parser)
    parser.add_argument(
        "--out", type=Path, default=Path("pseudo.png"), metavar="FILE", help="image to write (default ./pseudo.png)"
    )
    parser.add_argument(
        "--count", type=number(int, 1), default=24, metavar="N", help="number of pseudo anomalies (default 24)"
    )
    parser.add_argument("--known", type=number(int, 0), metavar="N", help="number of known anomalies, as for train")
    add_max_unreadable(parser)
    add_recipe(parser)


def _pseudo(arguments: argparse.Namespace) -> int:
    from bgad.data import layouts
    from bgad.data.sample_io import ImageCache, validate_images
    from bgad.data.split import make_split
    from bgad.io import render

    config = read_config(arguments)
    check_file(arguments.out, ".png")
    dataset = layouts.locate(arguments.data, arguments.root)
    from bgad.model.backbone import resolve
    from bgad.pseudo.contact_sheet import contact_sheet
    from bgad.training.training_set import PseudoSeries, can_generate, with_visible_defect, without_full_masks

    config = resolve(config)
    images = ImageCache(config.backbone.size, crop=config.backbone.crop)
    with console.progress() as progress:
        dataset, _ = validate_images(dataset, arguments.max_unreadable, images, progress)
    for note in dataset.notes:
        console.warn(note)
    split = make_split(dataset, seed=config.seed, known=arguments.known)
    split = with_visible_defect(without_full_masks(split), images)
    known = [s for s in split.known if s.mask is not None]
    usual = preset_for(config.method, None).pseudo.method
    method = config.pseudo.method if config.pseudo.method != "none" else usual
    if not can_generate(method, known):
        raise DataError(
            f"{arguments.data}: {method} needs known anomalies with masks, and there are none: "
            "add masks, or use --set pseudo.method=nsa"
        )
    series = PseudoSeries(split.train, known, images, replace(config.pseudo, method=method), config.seed)
    with console.progress() as progress:
        task = ProgressTask(progress, "pseudo anomalies", arguments.count)
        anomalies = []
        for index in range(arguments.count):
            anomalies.append(series.make(index))
            task.advance()
    render.save_png(contact_sheet(anomalies), arguments.out)
    console.say(f"contact sheet: {arguments.out}")
    return 0
