"""The command `bgad figures`."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from bgad.benchmark.published import printed
from bgad.cli import console
from bgad.cli.options import add_command, add_recipe, add_root, names, number, read_config
from bgad.config import METHODS
from bgad.data.protocols import PROTOCOLS
from bgad.errors import ConfigError, DataError

DEFAULT_METHODS = "bgad-wo,bgad,bgad-plus"
FIGURES = {
    "histogram": "log-likelihoods of each level, without and with anomalies",
    "qualitative": "images with outlined ground truth beside the anomaly maps of each method",
    "tsne": "t-SNE of features and of latents, before and after phase 2",
    "curve": "image and pixel AUROC on the test images against the epoch or the step; no model is chosen by it",
    "rpag": "a sheet of pseudo anomalies",
}
FIGURE_PROTOCOLS = tuple(name for name in PROTOCOLS if name not in ("hard", "unseen"))  # those need a subset


def add_figures(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "figures",
        _figures,
        "Draw the paper's figures for a data set: trains the methods and writes each figure as SVG and PNG. "
        "Needs bgad[train,figures].",
        "figures:\n"
        + "".join(f"  {name:<13} {text}\n" for name, text in FIGURES.items())
        + "\nexamples:\n  bgad figures mvtec/screw --backbone lite0 --out figures\n"
        "  bgad figures elpv --protocol one-class --known-class mono --backbone lite0 --figures histogram,tsne\n"
        "  bgad figures --results bgad-benchmark/results.json     (the bar chart of a benchmark)",
    )
    parser.add_argument(
        "data", nargs="?", metavar="DATA", help="a folder, a manifest or a public data set, as for train"
    )
    parser.add_argument("--out", type=Path, default=Path("figures"), metavar="DIR", help="folder (default ./figures)")
    parser.add_argument("--figures", metavar="A,B", help=f"of {', '.join(FIGURES)} (default: all that the data gives)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="results.json of a benchmark: draws its bar chart")
    parser.add_argument("--methods", default=DEFAULT_METHODS, metavar="A,B", help=f"default {DEFAULT_METHODS}")
    parser.add_argument("--protocol", default="multi-class", choices=FIGURE_PROTOCOLS, help="default multi-class")
    parser.add_argument("--known-class", default="", metavar="NAME", help="of one-class: class of the known anomalies")
    parser.add_argument("--known", type=number(int, 1), default=10, metavar="N", help="known anomalies (default 10)")
    add_recipe(parser, one_model=False)
    parser.add_argument("--seed", type=number(int, 0, 2**32), metavar="N", help="of split and training (default 0)")
    how = parser.add_argument_group("run")
    add_root(how)
    how.add_argument("--device", default="auto", help="auto (CUDA or MPS where there is one), cpu, cuda, mps")
    how.add_argument("--memory", type=number(float, 0), default=4.0, metavar="GB", help="for features (default 4)")


def _figures(arguments: argparse.Namespace) -> int:
    from bgad.benchmark.figure_plots import require_libraries
    from bgad.io.files import check_folder

    if (arguments.data is None) == (arguments.results is None):
        raise ConfigError("give DATA, or --results FILE for the bar chart of a benchmark")
    require_libraries()
    check_folder(arguments.out)
    files = _bar_chart(arguments) if arguments.results is not None else _data_figures(arguments)
    for file in files:
        console.say(f"figure: {file}")
    return 0


def _data_figures(arguments: argparse.Namespace) -> list[Path]:
    """Train the methods on the data and draw its figures."""
    import tempfile

    from bgad.benchmark import figure_plots, figures
    from bgad.data import layouts
    from bgad.data.protocols import Case
    from bgad.model.backbone import resolve
    from bgad.model.device import tune_allocator
    from bgad.types import RunControl

    tune_allocator()
    wanted = names(arguments.figures, "figure", FIGURES) if arguments.figures else tuple(FIGURES)
    with_flows = tuple(name for name, method in METHODS.items() if method.level == "flow")
    flowless = [name for name in names(arguments.methods, "method") if name in METHODS and name not in with_flows]
    if flowless:
        choice = ", ".join(with_flows)
        raise ConfigError(f"{flowless[0]} has no flows, which these figures show: choose from {choice}")
    methods = names(arguments.methods, "method", with_flows)
    configs = [resolve(replace(read_config(arguments, method), seed=arguments.seed or 0)) for method in methods]
    options = figures.FigureOptions(
        protocol=arguments.protocol,
        case=Case(arguments.known_class),
        known=arguments.known,
        seed=arguments.seed or 0,
        device=arguments.device,
        memory_gb=arguments.memory,
    )
    dataset = layouts.locate(Path(arguments.data), arguments.root)
    with console.progress() as progress, console.stop_on_interrupt() as stop, tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        pools = figures.new_pools(configs, work / "pools", options, progress)
        dataset, split = figures.make_split(dataset, pools.images, options, progress)
        kept = figures.possible(split, wanted, named=arguments.figures is not None)
        if not kept:
            raise DataError(f"{dataset.name} can give none of the figures: {', '.join(wanted)}")
        control = RunControl(progress, stop)
        data = figures.collect(dataset, split, configs, pools, work, control, with_curve="curve" in kept)
        return [file for name in kept for file in figure_plots.draw(name, data, arguments.out)]


def _bar_chart(arguments: argparse.Namespace) -> list[Path]:
    """Draw the bar chart of a benchmark's results, beside the printed figures with as many known anomalies."""
    from bgad.benchmark import figure_plots

    try:
        cells = json.loads(arguments.results.read_bytes())["cells"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{arguments.results}: is not the results.json of a benchmark") from error
    if not cells:
        raise DataError(f"{arguments.results}: has no finished cell to draw")
    beside: dict[str, dict[str, float]] = {}
    for data, protocol, known in {(cell["data"], cell["protocol"], cell["known"]) for cell in cells}:
        for (column, _), values in printed(data, protocol, known, data).items():
            if "image_auroc" in values:
                beside.setdefault(f"{column} (printed)", {})[data] = values["image_auroc"]
    return figure_plots.bars(cells, beside, arguments.out / "bars")
