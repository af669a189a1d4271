"""The commands that only tell: `bgad info` and `bgad datasets`."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bgad.calibration import percent
from bgad.cli import console
from bgad.cli.options import add_command, add_root
from bgad.config import ALL_METHODS, LEVELS, PRESETS, preset_for, to_toml
from bgad.errors import ConfigError

if TYPE_CHECKING:
    from bgad.artifact.card import Card


def add_info(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "info",
        _info,
        "Describe a model: data, recipe, threshold and its guarantee. Verifies every file of the folder.",
        "examples:\n  bgad info gear.bgad\n  bgad info --recipe > recipe.toml     (all keys with their defaults)",
    )
    parser.add_argument("model", type=Path, metavar="MODEL", nargs="?")
    parser.add_argument("--json", action="store_true", help="print the whole card as JSON")
    parser.add_argument(
        "--recipe", action="store_true", help="print the recipe as TOML: the model's, or that of --preset"
    )
    parser.add_argument("--method", choices=list(ALL_METHODS), help="method whose recipe to print, with --recipe")
    parser.add_argument("--preset", choices=list(PRESETS), help="preset to print, with --recipe and without MODEL")


def _info(arguments: argparse.Namespace) -> int:
    from bgad.artifact import folder as model_folder
    from bgad.artifact.card import to_json

    if arguments.json and arguments.recipe:
        raise ConfigError("--json prints the whole card with its recipe: leave out --recipe")
    if arguments.model is None:
        if not arguments.recipe:
            raise ConfigError("give a MODEL, or --recipe for the default recipe")
        print(to_toml(preset_for(arguments.method, arguments.preset)), end="")  # noqa: T201
        return 0
    if arguments.preset or arguments.method:
        raise ConfigError("a model has its own recipe: leave out --preset, --method or MODEL")
    card = model_folder.verify(arguments.model)
    if arguments.json:
        print(json.dumps(to_json(card), indent=1))  # noqa: T201
    elif arguments.recipe:
        print(to_toml(card.config), end="")  # noqa: T201
    else:
        for line in _describe(card):
            print(console.printable(line))  # noqa: T201
    return 0


def _describe(card: Card) -> list[str]:
    """Summarise a verified card in a few lines of text."""
    roles = Counter(image["role"] for image in card.split["images"])
    calibration, training, config = card.calibration_at(), card.training, card.config
    lines = [
        f"name        {card.name}  (format {card.format}, bgad {card.provenance.bgad}, {card.provenance.created})",
        f"data        {card.data.name}: {roles['train']} normals trained on, {roles['calibration']} held out, "
        f"{card.data.known} known anomalies, {roles['test']} images left for test",
        f"recipe      {card.method} on {config.backbone.name}, "
        f"{card.input.width} x {card.input.height}, seed {config.seed}",
    ]
    if config.tile.size:
        lines.append(f"tiles       of {config.tile.size} pixels")
    if card.roi:
        lines.append(f"region      {card.roi.share:.0%} of the image, {card.roi.width}x{card.roi.height} pixels")
    lines += [
        f"training    {training.steps} steps in {training.seconds:.0f} s on {training.device}",
        f"threshold   {calibration.threshold:.6g} at a false-reject rate of {calibration.false_reject_rate:g}",
        f"guarantee   {calibration.guarantee}",
        f"map         threshold {calibration.map_threshold:.6g}, boundary {card.map.boundary:.6g}: at most "
        f"{percent(calibration.false_reject_rate)} of good images show any contour at the threshold"
        + (f", with {calibration.confidence:.12g} confidence" if calibration.confidence else ""),
    ]
    lines += [
        f"level       {level.title}: b_n {level.normal_boundary:.3f}, b_a {level.abnormal_boundary:.3f}"
        f" ({LEVELS[config.level].unit}), {level.weight:.0%} of the map score"
        for level in card.levels
    ]
    lines += [
        f"precision   {name} on {found.device}: threshold {card.calibration_at(name).threshold:.6g}, map threshold "
        f"{card.calibration_at(name).map_threshold:.6g}; rank correlation with float32 {found.rank_correlation:.4f}, "
        f"{found.changed_decisions} of {found.images} decisions changed"
        for name, found in card.agreement.items()
    ]
    weights = ", ".join(f"{part.name} {part.weight:.2f}" for part in card.score_parts)
    lines.append(f"score       sum of its parts, with the weights: {weights}")
    return [
        *lines,
        f"files       {', '.join(f'{name} {digest[:12]}' for name, digest in card.files.items())}: all intact",
        f"licences    {'; '.join(f'{subject}: {licence}' for subject, licence in card.licences.items())}",
    ]


def add_datasets(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "datasets",
        _datasets,
        "List the public data sets that bgad knows by name, and which of them are on disk. Downloads nothing.",
        "examples:\n  bgad datasets\n  bgad datasets --root /data --json",
    )
    add_root(parser)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def _datasets(arguments: argparse.Namespace) -> int:
    from bgad.data.datasets import registry

    root = arguments.root or registry.default_root()
    rows = registry.inventory(root)
    if arguments.json:
        print(json.dumps([row.to_json() for row in rows], indent=1))  # noqa: T201
    else:
        from bgad.cli.tables import dataset_table

        console.stdout_console().print(dataset_table(rows))
        console.say(f"looked in {root}")
    return 0
