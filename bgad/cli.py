"""The command line: parses, calls, prints. Data goes to stdout, everything for people to stderr."""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any, NoReturn

from bgad import __version__, console, outputs
from bgad.config import METHODS, PRESETS, PSEUDO_METHODS, Config, override, read_toml, to_toml
from bgad.errors import BgadError, ConfigError, DataError

EXIT_BAD_IMAGES, EXIT_ERROR, EXIT_INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 (some images could not be scored), 2 (error) or 130 (Ctrl-C)."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file name need not fit the terminal's encoding
    try:
        arguments = _parser().parse_args(argv)
        code = int(arguments.run(arguments))
        print(end="", flush=True)  # noqa: T201 - a full disk or a closed pipe is told here, not on the way out
        return code
    except BgadError as error:
        return _fail(str(error))
    except ModuleNotFoundError as error:
        if error.name in ("torch", "torchvision", "timm", "safetensors"):
            return _fail(f"this command needs {error.name}, which is not installed: pip install 'bgad[train]'")
        raise
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as in `bgad predict ... | head`
        _close_stdout()
        return EXIT_ERROR
    except OSError as error:
        if not error.filename:  # a stream, not a file
            _close_stdout()
        return _fail(f"{error.filename or 'input or output'}: {error.strerror or error}")
    except (MemoryError, RuntimeError) as error:  # torch has a RuntimeError for it
        if isinstance(error, RuntimeError) and not re.search("out of memory|allocate memory", str(error)):
            raise
        return _fail("out of memory: lower --memory, --size or train.images")


def _close_stdout() -> None:
    """Let what is still buffered go nowhere: the interpreter would try to write it again on its way out."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str) -> int:
    console.fail(message)
    return EXIT_ERROR


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, like every other error."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")


def _number(kind: type[float], least: float, below: float = math.inf) -> Callable[[str], float]:
    """Reads an option's number (of type int or float) and says what is allowed."""

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


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="bgad",
        description="Find defects in pictures: learn normal from good images, sharpen its edge with a few bad ones.",
        epilog="Start with `bgad demo`, then `bgad train FOLDER` on your own pictures. "
        "Each command explains itself with --help.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"bgad {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_demo(commands)
    _add_train(commands)
    _add_predict(commands)
    _add_evaluate(commands)
    _add_pseudo(commands)
    _add_info(commands)
    from bgad.cli_benchmark import add_benchmark  # which builds on what is here

    add_benchmark(commands)
    _add_datasets(commands)
    return parser


def _command(commands: Any, name: str, run: Callable[[Any], int], text: str, epilog: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text.split(". ")[0].rstrip("."),
        description=text,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # a shortened option would change its meaning with the next one that begins alike
    )
    parser.set_defaults(run=run)
    return parser


DATA_HELP = """what DATA may be:
  DIR/train/good, DIR/test/<class>, DIR/ground_truth/<class>/<name>_mask.png   (MVTec layout)
  DIR/good, DIR/bad, and, if you have them, DIR/masks                          (plain layout)
  FILE.csv or FILE.jsonl with path, label and, if you like, mask, class, split (manifest)
"""


def _add_recipe(parser: argparse.ArgumentParser, *, one_model: bool = True) -> None:
    group = parser.add_argument_group("recipe")
    parser.set_defaults(method=None, seed=None)
    group.add_argument("--preset", choices=list(PRESETS), default="default", help="`paper` trains as the paper does")
    group.add_argument("--config", type=Path, metavar="FILE", help="TOML file on top of the preset")
    if one_model:
        group.add_argument(
            "--method", choices=list(METHODS), help="; ".join(f"{name}: {text}" for name, text in METHODS.items())
        )
        group.add_argument(
            "--seed", type=_number(int, 0, 2**32), metavar="N", help="same seed, same machine, same model (default 0)"
        )
    group.add_argument("--backbone", metavar="NAME", help="lite0 (default), lite1, lite2, or any timm model")
    group.add_argument("--weights", metavar="FILE", help="weights of the backbone: safetensors or a state dict")
    group.add_argument("--size", type=int, metavar="PIXELS", help="side of the model's input (default 256)")
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any other key of the recipe, such as loss.tau=0.2; `bgad info --recipe` lists them",
    )


def _config(arguments: argparse.Namespace) -> Config:
    """Preset, then file, then options, then --set."""
    config = PRESETS[arguments.preset]
    if arguments.config:
        config = read_toml(arguments.config, config)
    pairs = {
        "loss.method": arguments.method,
        "backbone.name": arguments.backbone,
        "backbone.weights": arguments.weights,
        "backbone.size": arguments.size,
        "seed": arguments.seed,
    }
    given = [f"{key}={json.dumps(value)}" for key, value in pairs.items() if value is not None]
    return override(config, given + arguments.set)


def _add_train(commands: Any) -> None:
    parser = _command(
        commands,
        "train",
        _train,
        "Train a model on a folder of images. Part of the normals is held out to set a threshold that means something.",
        DATA_HELP + "\nexamples:\n  bgad train parts/\n  bgad train parts/ --false-reject-rate 0.01 --out gear.bgad\n"
        "  bgad train parts/ --resume        (after Ctrl-C or a crash)",
    )
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("--out", type=Path, metavar="DIR", help="model folder to write (default: ./NAME.bgad)")
    parser.add_argument(
        "--known",
        type=_number(int, 0),
        metavar="N",
        help="use N known anomalies, drawn by seed; the others stay for test (default: all of bad/ or "
        "train/<class>; in the MVTec layout 10 drawn from test/, which `evaluate` then leaves out)",
    )
    parser.add_argument(
        "--test",
        type=_number(float, 0, 1),
        default=0.0,
        metavar="SHARE",
        help="keep this share of the normals aside for `evaluate`, where the data has no test split (default 0)",
    )
    parser.add_argument(
        "--split",
        type=Path,
        metavar="FILE",
        help="take every image's role from a split file, such as the split.json of another model; "
        "in place of --known and --test",
    )
    parser.add_argument(
        "--false-reject-rate",
        type=float,
        metavar="RATE",
        help="share of good parts that may be rejected (default 0.05, or the smallest that the data supports)",
    )
    _add_recipe(parser)
    group = parser.add_argument_group("run")
    group.add_argument("--device", default="auto", help="auto (CUDA or MPS where there is one), cpu, cuda, mps")
    group.add_argument(
        "--memory", type=_number(float, 0), default=4.0, metavar="GB", help="of cached features; beyond: on disk"
    )
    group.add_argument(
        "--max-bad", type=_number(int, 0), default=10, metavar="N", help="broken images to skip before giving up"
    )
    group.add_argument("--resume", action="store_true", help="go on with a run that was stopped")
    group.add_argument("--overwrite", action="store_true", help="replace the model folder if there is one")
    group.add_argument("--tensorboard", type=Path, metavar="DIR", help="also log to TensorBoard")


def _train(arguments: argparse.Namespace) -> int:
    config = _config(arguments)
    if arguments.tensorboard:
        outputs.check_folder(arguments.tensorboard)
    from bgad.learn import train

    train(
        arguments.data,
        arguments.out,
        config=config,
        known=arguments.known,
        test_share=arguments.test,
        split=arguments.split,
        rate=arguments.false_reject_rate,
        device=arguments.device,
        memory_gb=arguments.memory,
        max_bad=arguments.max_bad,
        resume=arguments.resume,
        overwrite=arguments.overwrite,
        tensorboard=arguments.tensorboard,
    )
    model = quote(str(arguments.out or Path(f"{arguments.data.resolve().stem}.bgad")))
    console.say(f"next: bgad predict {model} PICTURE...   or   bgad evaluate {model} {quote(str(arguments.data))}")
    return 0


def _add_predict(commands: Any) -> None:
    parser = _command(
        commands,
        "predict",
        _predict,
        "Score images with a model. A table on a terminal, JSON lines into a pipe.",
        "A JSON line has path, score, p_value, is_anomaly, threshold, error. The exit code is 1 when an image could\n"
        "not be scored, whatever the others say.\n\nexamples:\n  bgad predict gear.bgad new/ --out looked-at/\n"
        "  bgad predict gear.bgad 'new/**/*.png' | jq 'select(.is_anomaly)'",
    )
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("paths", nargs="+", metavar="PATH", help="files, folders or glob patterns")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write overlays (.png) and raw maps (.tif) there")
    parser.add_argument("--false-reject-rate", type=float, metavar="RATE", help="another threshold than the model's")
    parser.add_argument("--json", action="store_true", help="JSON lines on a terminal, too")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")


def _predict(arguments: argparse.Namespace) -> int:
    from bgad.predict import find, predict, table

    paths = find(arguments.paths, arguments.out)
    from bgad.detector import Detector  # after the paths are known to be good: torch takes seconds to load

    detector = Detector.load(arguments.model, arguments.device)
    if arguments.false_reject_rate is not None:
        detector.set_rate(arguments.false_reject_rate)
    terminal = bool(sys.stdout and sys.stdout.isatty())
    as_table = terminal and not arguments.json
    rows = []
    failed = 0
    with console.bar("scoring", len(paths), show=as_table or not terminal) as bar:
        for row in predict(detector, paths, arguments.out):
            failed += row["error"] is not None
            if as_table:
                rows.append(row)
            else:
                print(json.dumps(row), flush=True)  # noqa: T201
            bar.update()
    if as_table:
        from rich.console import Console

        Console().print(table(rows))
    flagged = f"{failed} of {len(paths)} images could not be scored" if failed else f"{len(paths)} images scored"
    console.say(flagged + (f"; overlays and maps are in {arguments.out}" if arguments.out else ""))
    return EXIT_BAD_IMAGES if failed else 0


def _add_evaluate(commands: Any) -> None:
    parser = _command(
        commands,
        "evaluate",
        _evaluate,
        "Measure a model on labelled images that it has not seen. Writes results.json and report.html.",
        DATA_HELP + "\nImages that the model was trained or calibrated on are recognised by content and left out.",
    )
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: ./NAME-evaluation)")
    parser.add_argument("--false-reject-rate", type=float, metavar="RATE", help="another threshold than the model's")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")


def _evaluate(arguments: argparse.Namespace) -> int:
    from bgad import report
    from bgad.data import folders
    from bgad.evaluate import evaluate, write_results

    out = arguments.out or Path(f"{arguments.model.resolve().stem}-evaluation")
    outputs.check_folder(out)
    dataset = folders.load(arguments.data, need_normals=False)
    from bgad.detector import Detector

    detector = Detector.load(arguments.model, arguments.device)
    if arguments.false_reject_rate is not None:
        detector.set_rate(arguments.false_reject_rate)
    cell, section, rows = evaluate(detector, dataset)
    report.write(out / "report.html", f"bgad: {section.title}", [section], [cell])
    results = write_results(out, [cell], rows)
    _print_table([cell])
    console.say(f"figures: {results}\nreport:  {out / 'report.html'}")
    return EXIT_BAD_IMAGES if any(note.startswith("left out:") for note in section.notes) else 0


def _print_table(cells: list[dict[str, Any]]) -> None:
    from bgad import report

    _print(report.terminal_table(cells))


def _print(table: Any) -> None:
    from rich.console import Console

    width = None if sys.stdout and sys.stdout.isatty() else 160  # a pipe has no width; do not fold the table
    Console(width=width).print(table)


def _add_demo(commands: Any) -> None:
    parser = _command(
        commands,
        "demo",
        _demo,
        "Make a small data set, train on it and show what was found. About three minutes on two cores.",
        "examples:\n  bgad demo\n  bgad demo --methods nfad,bgad --seeds 3     (the table of the README)",
    )
    parser.add_argument("--out", type=Path, default=Path("bgad-demo"), metavar="DIR", help="default ./bgad-demo")
    parser.add_argument("--methods", default="bgad", metavar="A,B", help=f"of {', '.join(METHODS)} (default bgad)")
    parser.add_argument(
        "--seeds", type=_number(int, 1), default=1, metavar="N", help="train with seeds 0 to N-1 (default 1)"
    )
    parser.add_argument("--known", type=_number(int, 0), default=10, metavar="N", help="known anomalies (default 10)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")


def _demo(arguments: argparse.Namespace) -> int:
    from bgad.demo import run_demo

    methods = list(dict.fromkeys(name.strip() for name in arguments.methods.split(",")))
    for method in methods:
        if method not in METHODS:
            raise ConfigError(f"unknown method {method!r}: choose from {', '.join(METHODS)}")
    cells = run_demo(arguments.out, methods, arguments.seeds, arguments.known, arguments.device)
    _print_table(cells)
    out = quote(str(arguments.out))
    console.say(f"figures: {out}/results.json\nreport:  {out}/report.html   (open it in a browser)")
    console.say(f"next: bgad predict {out}/washer.bgad {out}/data/washer/test/scratch --out {out}/looked-at")
    return 0


def _add_pseudo(commands: Any) -> None:
    parser = _command(
        commands,
        "pseudo",
        _pseudo,
        "Draw a contact sheet of the pseudo anomalies that training would make.",
        DATA_HELP
        + "\nhow they are made (--set pseudo.method=NAME):\n"
        + "".join(f"  {name:<6} {text}\n" for name, text in PSEUDO_METHODS.items() if name != "none"),
    )
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("--out", type=Path, default=Path("pseudo.png"), metavar="FILE", help="default ./pseudo.png")
    parser.add_argument("--count", type=_number(int, 1), default=24, metavar="N", help="how many (default 24)")
    parser.add_argument("--known", type=_number(int, 0), metavar="N", help="as for train")
    _add_recipe(parser)


def _pseudo(arguments: argparse.Namespace) -> int:
    from bgad import images
    from bgad.data import folders
    from bgad.data.split import holdout_size, make_split

    config = _config(arguments)
    outputs.check_folder(arguments.out.parent)
    dataset = folders.load(arguments.data)
    from bgad import pseudo
    from bgad.learn import MAX_BAD, scan_images

    dataset, scan = scan_images(dataset, MAX_BAD)
    for note in dataset.notes:
        console.warn(note)
    normals = sum(s.label == 0 and s.split != "test" for s in dataset.samples)
    split = make_split(dataset, seed=config.seed, known=arguments.known, holdout=holdout_size(normals))
    known = [s for s in split.known if s.mask is not None]
    method = config.pseudo.method if config.pseudo.method != "none" else "rpag"
    if not pseudo.can_make(method, known):
        raise DataError(
            f"{arguments.data}: {method} cuts pseudo anomalies from known anomalies with masks; there are none: "
            "mark some, or --set pseudo.method=nsa"
        )
    size = (config.backbone.size, config.backbone.size)
    with console.bar("pseudo anomalies", arguments.count) as bar:
        tiles = []
        for tile in pseudo.generate(
            split.train,
            known,
            arguments.count,
            seed=config.seed,
            size=size,
            method=method,
            transforms=config.pseudo.transforms,
            bits=scan.bits,
        ):
            tiles.append(tile)
            bar.update()
    images.save_png(pseudo.contact_sheet(tiles), arguments.out)
    console.say(f"contact sheet: {arguments.out}")
    return 0


def _add_info(commands: Any) -> None:
    parser = _command(
        commands,
        "info",
        _info,
        "Say what a model is: data, recipe, threshold and its guarantee. Checks every byte of the folder.",
        "examples:\n  bgad info gear.bgad\n  bgad info --recipe > recipe.toml     (all keys with their defaults)",
    )
    parser.add_argument("model", type=Path, metavar="MODEL", nargs="?")
    parser.add_argument("--json", action="store_true", help="the whole card as JSON")
    parser.add_argument("--recipe", action="store_true", help="the recipe as TOML: the model's, or the preset's")
    parser.add_argument("--preset", choices=list(PRESETS), default="default", help="with --recipe and no MODEL")


def _info(arguments: argparse.Namespace) -> int:
    from bgad import modelfile
    from bgad.config import from_dict

    if arguments.model is None:
        if not arguments.recipe:
            raise ConfigError("give a MODEL, or --recipe for the default one")
        print(to_toml(PRESETS[arguments.preset]), end="")  # noqa: T201
        return 0
    card = modelfile.read(arguments.model)
    if arguments.json:
        print(json.dumps(card.data, indent=1))  # noqa: T201
    elif arguments.recipe:
        print(to_toml(from_dict(card.data["config"])), end="")  # noqa: T201
    else:
        for line in modelfile.describe(card):
            print(console.printable(line))  # noqa: T201
    return 0


def _add_datasets(commands: Any) -> None:
    parser = _command(
        commands,
        "datasets",
        _datasets,
        "List the public data sets that bgad knows by name, and what of them is on disk. Nothing is downloaded.",
        "examples:\n  bgad datasets\n  bgad datasets --root /data --json",
    )
    parser.add_argument(
        "--root", type=Path, metavar="DIR", help="the folder that holds the sets (default: $BGAD_DATA, else ./data)"
    )
    parser.add_argument("--json", action="store_true", help="everything as JSON")


def _datasets(arguments: argparse.Namespace) -> int:
    from bgad.data import catalog

    root = arguments.root or catalog.default_root()
    rows = catalog.inventory(root)
    if arguments.json:
        print(json.dumps([row.to_json() for row in rows], indent=1))  # noqa: T201
    else:
        _print(catalog.table(rows))
        console.say(f"looked in {root}")
    return 0
