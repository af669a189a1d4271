"""Describes the recipes behind a benchmark table, so that no figure stands without what made it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from bgad.benchmark.paper_tables import Matrix
from bgad.config import ALL_METHODS, BASELINES, METHODS, SMOKE, Config, preset_for, to_dict

STATED = ("backbone.name", "backbone.size", "train.steps", "train.push_steps", "train.epochs")  # in every description


def recipe_lines(matrix: Matrix, configs: Mapping[str, Config]) -> list[str]:
    """Return one line for each recipe that the columns of a table share; methods alone do not make two recipes."""
    shared: dict[str, list[str]] = {}
    for method in dict.fromkeys(column.method for column in matrix.columns):
        shared.setdefault(describe(configs[method]), []).append(method)
    lines = []
    for text, methods in shared.items():
        changes = [change for column in matrix.columns if column.method in methods for change in column.changes]
        keys = dict.fromkeys(change.partition("=")[0] for change in changes)
        head = f"Recipe of {', '.join(methods)}" if len(shared) > 1 else "Recipe"
        lines.append(f"{head}: {text}" + (f"; the columns set {', '.join(keys)}" if keys else ""))
    return lines


def describe(config: Config) -> str:
    """Return the nearest preset of the method, the backbone, the schedule, and what else differs from the preset.

    >>> describe(Config())
    'default, lite0 at 256 x 256, 800 + 400 steps'
    """
    backbone, train = config.backbone, config.train
    presets = {name: preset_for(config.method, name) for name in ALL_METHODS[config.method].presets}
    differing = {name: _differences(config, recipe) for name, recipe in presets.items()}
    preset = min(differing, key=lambda name: (len(differing[name]), presets[name].backbone.size != backbone.size))
    shown = f"{preset} of {next(iter(presets))}" if preset == SMOKE and config.method in METHODS else preset
    text = f"{shown}, {backbone.name} at {backbone.size} x {backbone.size}"
    if config.method not in BASELINES:
        text += f", {train.epochs} epochs" if train.epochs else f", {train.steps} + {train.push_steps} steps"
    return "; ".join([text, *([", ".join(differing[preset])] if differing[preset] else [])])


def _differences(config: Config, preset: Config) -> list[str]:
    """Return the keys that differ from those of a preset, with their values, other than what is stated anyway."""
    others = to_dict(preset)
    found = []
    for part, values in to_dict(config).items():
        for name, value in values.items() if isinstance(values, dict) else ():
            if value != others[part][name] and f"{part}.{name}" not in STATED:
                shown = Path(value).name if name == "weights" else value
                found.append(f"{part}.{name}={shown if isinstance(shown, str) else json.dumps(shown)}")
    return found
