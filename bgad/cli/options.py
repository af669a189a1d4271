"""Options that several commands share: data, model, engine, recipe and the resources of tasks on a cluster."""

from __future__ import annotations

import argparse
import json
import math
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from bgad.cli import console
from bgad.config import ALL_METHODS, BASELINES, PRESETS, Config, from_dict, override, preset_for, read_toml
from bgad.errors import ConfigError
from bgad.types import ANOMALOUS_NAMES, NORMAL_NAMES

if TYPE_CHECKING:
    from bgad.cluster.tasks import Resources
    from bgad.inference.base import BaseScorer


def _wrapped(head: str, words: Sequence[str]) -> str:
    """Return a list of words as lines of a help text."""
    return textwrap.fill(", ".join(words), 100, initial_indent=head, subsequent_indent=" " * len(head))


DATA_HELP = f"""what DATA may be:
  DIR/train/good, DIR/test/<class>, DIR/ground_truth/<class>/<name>_mask.png   (MVTec layout)
  DIR/good, DIR/bad and optionally DIR/masks                                   (plain layout)
  FILE.csv or FILE.jsonl with path, label and optionally mask, class, split    (manifest)
  NAME or NAME/CATEGORY of `bgad datasets`, such as elpv or mvtec/screw        (public data set)
A path that exists is taken as a path; a name is looked for in --root.
Names of good and bad, whatever their case, accents and dots:
{_wrapped("  good: ", NORMAL_NAMES)}
{_wrapped("  bad:  ", ANOMALOUS_NAMES)}
Any other folder with images beside good is an error; begin its name with _ to leave it out.
"""


class Parser(argparse.ArgumentParser):
    """Argument parser that reports errors as ConfigError, in one line."""

    def error(self, message: str) -> NoReturn:
        """Raise the error instead of exiting."""
        raise ConfigError(f"{message}; see {self.prog} --help")


def add_command(commands: Any, name: str, run: Callable[[Any], int], text: str, epilog: str) -> argparse.ArgumentParser:
    """Add a command to the parser; the first sentence of `text` is its line in the overview."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text.split(". ")[0].rstrip("."),
        description=text,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # an abbreviation would change its meaning with the next option that shares its beginning
    )
    parser.set_defaults(run=run)
    return parser


def number(kind: type[float], least: float, below: float = math.inf) -> Callable[[str], float]:
    """Return a converter for an option: an int or float in [least, below), or an error that says what is allowed."""

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value < below:
            what = "a whole number" if kind is int else "a number"
            upto = f" and less than {below}" if below < math.inf else ""
            raise argparse.ArgumentTypeError(f"{text!r} must be {what}, {least:g} or more{upto}")
        return value

    return read


def names(text: str, what: str, allowed: Collection[str] = ()) -> tuple[str, ...]:
    """Return the different names of a list with commas; ConfigError where there is none, or one that is not allowed.

    >>> names("a, b,a", "letter")
    ('a', 'b')
    """
    listed = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not listed:
        raise ConfigError(f"{text!r} names no {what}: give one or more, with commas between")
    for name in listed:
        if allowed and name not in allowed:
            raise ConfigError(f"unknown {what} {name!r}: choose from {', '.join(allowed)}")
    return listed


def add_root(parser: Any) -> None:
    """Add --root to a parser or to a group of options."""
    parser.add_argument(
        "--root",
        type=Path,
        metavar="DIR",
        help="folder with the public data sets (default: $BGAD_DATA, else ./data)",
    )


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add DATA, as DATA_HELP explains it, and --root."""
    parser.add_argument("data", type=Path, metavar="DATA", help="a folder, a manifest or a public data set, see below")
    add_root(parser)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add MODEL, a model folder."""
    parser.add_argument("model", type=Path, metavar="MODEL", help="the folder of a trained model, NAME.bgad")


def add_precision(parser: Any) -> None:
    """Add --precision to a parser or to a group of options."""
    from bgad.artifact.card import FLOAT32
    from bgad.inference.precision import AUTO, PRECISIONS

    parser.add_argument(
        "--precision",
        choices=(AUTO, *PRECISIONS),
        default=FLOAT32,
        help="precision to score in: one that `bgad export --precision` has calibrated, or auto, the fastest of them "
        "on this machine, which is measured once (default float32: one score on every machine)",
    )


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add the options that `load_scorer` reads."""
    from bgad.inference.load import ENGINES

    group = parser.add_argument_group("engine")
    group.add_argument(
        "--engine",
        choices=("auto", *ENGINES),
        default="auto",
        help="onnx runs the model's graph and needs no torch; openvino runs what `bgad export --to openvino` wrote "
        "(default: onnx where the model has a graph, else torch; openvino below float32)",
    )
    add_precision(group)
    group.add_argument(
        "--device",
        default="auto",
        help="auto (CUDA where the engine has it), cpu, cuda; tensorrt or openvino (onnx), gpu or npu (openvino), "
        "mps (torch)",
    )
    group.add_argument(
        "--threads",
        type=number(int, 1),
        metavar="N",
        help="threads for decoding and scoring (default: all usable CPUs)",
    )
    add_tile(parser, "cut images into tiles of this side, whatever the model was trained on")
    group.add_argument(
        "--batch",
        type=number(int, 1),
        metavar="N",
        help="images that an accelerator takes at a time (default 4); a CPU takes one on each core",
    )
    group.add_argument(
        "--strict",
        action="store_true",
        help="fail when the graph cannot run on --device, instead of falling back to the CPU",
    )


def add_contour(parser: argparse.ArgumentParser, text: str) -> None:
    """Add --contour, whose value is None where it is not given."""
    from bgad.inference.batch import CONTOURS, THRESHOLD

    parser.add_argument(
        "--contour",
        choices=CONTOURS,
        help=f"{text}: at the map threshold, above which at most the false-reject rate of good images has any map "
        f"value, or at the paper's normal boundary (default {THRESHOLD})",
    )


def add_tile(parser: argparse.ArgumentParser, text: str) -> None:
    """Add --tile, with or without a number; without one its value is 0."""
    parser.add_argument(
        "--tile",
        type=number(int, 32),
        nargs="?",
        const=0,
        metavar="PIXELS",
        help=f"{text} (without a number: the side of the model's input)",
    )


def load_scorer(arguments: argparse.Namespace) -> BaseScorer:
    """Load `arguments.model` on the engine, with the threshold and the tiles that the options ask for."""
    from bgad.inference.load import load

    scorer = load(
        arguments.model,
        arguments.device,
        engine=arguments.engine,
        precision=arguments.precision,
        threads=arguments.threads,
        batch=arguments.batch,
        strict=arguments.strict,
    )
    scorer.tune_process()
    if arguments.tile is not None:
        size = arguments.tile or scorer.card.config.backbone.size
        if size != scorer.tile.size:
            console.warn(
                f"the threshold was not calibrated with tiles of {size} pixels: good images may be rejected more often"
            )
        scorer.set_tile(size)
    if arguments.false_reject_rate is not None:
        scorer.set_rate(arguments.false_reject_rate)
    return scorer


def add_recipe(parser: argparse.ArgumentParser, *, one_model: bool = True) -> None:
    """Add the options that `read_config` reads."""
    group = parser.add_argument_group("recipe")
    parser.set_defaults(method=None, seed=None)
    group.add_argument(
        "--preset",
        choices=list(PRESETS),
        help="settings of the method; bgad-plus and nfad-plus have default, bgad-distance has distance; the paper's "
        "methods have paper-fast, with our schedule of 800 + 400 steps, unless you give paper, with its schedule of "
        "200 epochs; baselines have default and paper, with the printed values; all have smoke, for trying out",
    )
    group.add_argument("--config", type=Path, metavar="FILE", help="TOML file with keys on top of the preset")
    if one_model:
        group.add_argument(
            "--method",
            choices=list(ALL_METHODS),
            help="; ".join(f"{name}: {method.about}" for name, method in ALL_METHODS.items()),
        )
        group.add_argument(
            "--seed",
            type=number(int, 0, 2**32),
            metavar="N",
            help="random seed; the same seed gives the same model on the same machine (default 0)",
        )
    group.add_argument(
        "--backbone",
        metavar="NAME",
        help="lite0 (default), lite1, lite2, or any timm model, such as vit_small_patch14_dinov2.lvd142m; the default "
        "of the paper's methods is tf_efficientnet_b6; timm downloads the weights",
    )
    group.add_argument(
        "--weights",
        metavar="FILE",
        help="weights of the backbone: safetensors or a state dict, under timm's names or the official ones of a ViT",
    )
    group.add_argument(
        "--size",
        type=int,
        metavar="PIXELS",
        help="side of the model's input (default 256); a vision transformer takes the next multiple of its patch below",
    )
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set any key of the recipe, such as loss.tau=0.2; may be repeated; `bgad info --recipe` lists the keys",
    )


def read_config(arguments: argparse.Namespace, method: str | None = None) -> Config:
    """Build the recipe: the preset of the method, then --config, then single options, then --set.

    `method` takes precedence over --method and over that of the file.
    """
    values = read_toml(arguments.config) if arguments.config else {}
    chosen = method or arguments.method or values.get("method")
    if chosen is not None and (not isinstance(chosen, str) or chosen not in ALL_METHODS):
        raise ConfigError(f"method in {arguments.config} must be one of {', '.join(ALL_METHODS)}, not {chosen!r}")
    base = preset_for(chosen, arguments.preset)
    config = from_dict(values | {"method": base.method}, base, str(arguments.config))
    pairs = {
        "backbone.name": arguments.backbone,
        "backbone.weights": arguments.weights,
        "backbone.size": arguments.size,
        "seed": arguments.seed,
    }
    if method in BASELINES and BASELINES[method].learns_from_pixels:  # one of several, of which others have a backbone
        del pairs["backbone.name"], pairs["backbone.weights"]
    given = [f"{key}={json.dumps(value)}" for key, value in pairs.items() if value is not None]
    return override(config, given + arguments.set)


def add_max_unreadable(parser: Any) -> None:
    """Add --max-unreadable to a parser or to a group of options."""
    from bgad.data.sample_io import MAX_UNREADABLE

    parser.add_argument(
        "--max-unreadable",
        type=number(int, 0),
        default=MAX_UNREADABLE,
        metavar="N",
        help=f"unreadable images to skip before giving up (default {MAX_UNREADABLE})",
    )


def add_cluster_tasks(parser: argparse.ArgumentParser, needs: str) -> None:
    """Add --cluster and the resources of a task; `needs` says what the nodes must have."""
    group = parser.add_argument_group("cluster (needs bgad[ray])")
    group.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help=f"run on a Ray cluster: HOST:PORT, auto (the one that runs here) or local (start one here); {needs}",
    )
    group.add_argument("--cpus-per-task", type=number(int, 1), metavar="N", help="threads of a task (default 1)")
    group.add_argument("--gpus-per-task", type=number(float, 0), metavar="N", help="such as 0.5 (default 0)")


@contextmanager
def on_cluster(arguments: argparse.Namespace) -> Iterator[Resources | None]:
    """Connect to the cluster that was asked for and yield the resources of a task; None where none was."""
    if not arguments.cluster:
        for name in ("cpus_per_task", "gpus_per_task"):
            if getattr(arguments, name):
                raise ConfigError(f"--{name.replace('_', '-')} needs --cluster ADDRESS")
        yield None
        return
    from bgad.cluster.connection import connected

    with connected(arguments.cluster):
        from bgad.cluster.tasks import Resources

        yield Resources(arguments.cpus_per_task or 1, arguments.gpus_per_task or 0.0)
