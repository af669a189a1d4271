"""The command line: parses, calls, prints. Data goes to stdout, everything for people to stderr."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from bgad._version import __version__
from bgad.cli import console
from bgad.cli.benchmark import add_benchmark
from bgad.cli.options import (
    DATA_HELP,
    Parser,
    add_command,
    add_data,
    add_engine,
    add_model,
    add_recipe,
    add_root,
    add_tile,
    load_scorer,
    number,
    read_config,
)
from bgad.cli.predict import EXIT_BAD_IMAGES, add_export, add_predict
from bgad.cli.service import add_serve, add_token, add_update
from bgad.config import METHODS, PRESETS, PSEUDO_METHODS, to_toml
from bgad.errors import BgadError, ConfigError, DataError
from bgad.io import files as output_files
from bgad.types import ProgressTask

EXIT_ERROR, EXIT_INTERRUPTED = 2, 130
LESS = {  # of memory, by command
    "predict": "take --batch 1 --threads 1, and --no-pictures where nobody looks at them",
    "evaluate": "take --batch 1 --threads 1",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 (some images could not be scored), 2 (error) or 130 (Ctrl-C)."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file name need not fit the terminal's encoding
    console.show_log()
    command = ""
    try:
        arguments, unknown = _parser().parse_known_args(argv)
        command = arguments.command
        if unknown:
            raise ConfigError(f"unrecognized arguments: {' '.join(unknown)}; see bgad {command} --help")
        code = int(arguments.run(arguments))
        print(end="", flush=True)  # noqa: T201 - a full disk or a closed pipe is told here, not on the way out
        return code
    except BgadError as error:
        return _fail(str(error))
    except ModuleNotFoundError as error:
        if error.name in ("torch", "torchvision", "timm", "safetensors"):
            return _fail(f"this command needs {error.name}, which is not installed: pip install 'bgad[train]'")
        if error.name in ("sqlalchemy", "alembic", "fastapi", "uvicorn", "prometheus_client"):
            return _fail(f"this command needs {error.name}, which is not installed: pip install 'bgad[serve]'")
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
        return _fail(f"out of memory: {LESS.get(command, 'lower --memory, --size or train.images_per_step')}")


def _close_stdout() -> None:
    """Let what is still buffered go nowhere: the interpreter would try to write it again on its way out."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str) -> int:
    console.fail(message)
    return EXIT_ERROR


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="bgad",
        description="Find defects in pictures: learn normal from good images, sharpen its edge with a few bad ones.",
        epilog="Start with `bgad demo`, then `bgad train FOLDER` on your own pictures. "
        "Each command explains itself with --help.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"bgad {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    _add_demo(commands)
    _add_train(commands)
    add_predict(commands)
    _add_evaluate(commands)
    add_update(commands)
    add_serve(commands)
    add_token(commands)
    add_export(commands)
    _add_pseudo(commands)
    _add_info(commands)
    add_benchmark(commands)
    _add_datasets(commands)
    return parser


def _add_train(commands: Any) -> None:
    parser = add_command(
        commands,
        "train",
        _train,
        "Train a model on a folder of images. Part of the normals is held out to set a threshold that means something.",
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
        help="use N known anomalies, drawn by seed; the others stay for test (default: all that are outside of a "
        "test split; where all are in it, as in the MVTec layout, 10 of them, which `evaluate` then leaves out)",
    )
    parser.add_argument(
        "--test",
        type=number(float, 0, 1),
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
    add_recipe(parser)
    parser.add_argument(
        "--roi",
        type=Path,
        metavar="FILE",
        help="where to look, in training and ever after: a picture of the same size (black: do not look there), or a "
        "JSON file with polygons",
    )
    add_tile(parser, "cut pictures into tiles of so many pixels, for defects that are too small in the whole picture")
    group = parser.add_argument_group("run")
    group.add_argument("--device", default="auto", help="auto (CUDA or MPS where there is one), cpu, cuda, mps")
    group.add_argument(
        "--memory", type=number(float, 0), default=4.0, metavar="GB", help="of cached features; beyond: on disk"
    )
    _add_max_bad(group)
    group.add_argument("--resume", action="store_true", help="go on with a run that was stopped")
    group.add_argument("--overwrite", action="store_true", help="replace the model folder if there is one")
    group.add_argument("--tensorboard", type=Path, metavar="DIR", help="also log to TensorBoard")
    group.add_argument(
        "--no-export", action="store_true", help="write no model.onnx: the model then needs torch to score"
    )


def _add_max_bad(parser: Any) -> None:
    parser.add_argument(
        "--max-bad", type=number(int, 0), default=10, metavar="N", help="broken images to skip before giving up"
    )


def _train(arguments: argparse.Namespace) -> int:
    config = read_config(arguments)
    if arguments.tile is not None:
        size = arguments.tile or config.backbone.size
        config = replace(config, tile=replace(config.tile, size=size)).check()
    if arguments.tensorboard:
        output_files.check_folder(arguments.tensorboard)
    from bgad.cli.interrupt import stop_on_interrupt
    from bgad.data.locate import model_folder
    from bgad.training.pipeline import train

    with console.progress() as progress, stop_on_interrupt() as stop:
        train(
            arguments.data,
            arguments.out,
            root=arguments.root,
            config=config,
            known=arguments.known,
            test_share=arguments.test,
            split=arguments.split,
            false_reject_rate=arguments.false_reject_rate,
            device=arguments.device,
            memory_gb=arguments.memory,
            max_unreadable=arguments.max_bad,
            resume=arguments.resume,
            overwrite=arguments.overwrite,
            tensorboard=arguments.tensorboard,
            export=not arguments.no_export,
            roi=arguments.roi,
            progress=progress,
            stop=stop,
        )
    model, data = quote(str(arguments.out or model_folder(arguments.data))), quote(str(arguments.data))
    where = f" --root {quote(str(arguments.root))}" if arguments.root else ""
    console.say(f"next: bgad predict {model} PICTURE...   or   bgad evaluate {model} {data}{where}")
    return 0


def _add_evaluate(commands: Any) -> None:
    parser = add_command(
        commands,
        "evaluate",
        _evaluate,
        "Measure a model on labelled images that it has not seen. Writes results.json and report.html.",
        DATA_HELP
        + "\nImages that the model was trained or calibrated on are recognised by content and left out.\n"
        + "\nexamples:\n  bgad evaluate gear.bgad gears\n"
        + "  bgad evaluate screw.bgad mvtec/screw --root ~/data --out screw-report",
    )
    add_model(parser)
    add_data(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: ./NAME-evaluation)")
    parser.add_argument("--false-reject-rate", type=float, metavar="RATE", help="another threshold than the model's")
    add_engine(parser)


def _evaluate(arguments: argparse.Namespace) -> int:
    from bgad.data import locate
    from bgad.evaluation.evaluate import evaluate, write_results
    from bgad.evaluation.report import page as report

    out = arguments.out or Path(f"{arguments.model.resolve().stem}-evaluation")
    output_files.check_folder(out)
    dataset = locate.load(arguments.data, arguments.root, need_normals=False)
    scorer = load_scorer(arguments)
    with console.progress() as progress:
        cell, section, rows = evaluate(scorer, dataset, data=locate.set_name(arguments.data), progress=progress)
    report.write(out / "report.html", f"bgad: {section.title}", [section], [cell])
    results = write_results(out, [cell], rows)
    from bgad.cli.tables import evaluation_table

    console.stdout_console().print(evaluation_table([cell]))
    console.say(f"figures: {results}\nreport:  {out / 'report.html'}")
    return EXIT_BAD_IMAGES if any(note.startswith("left out:") for note in section.notes) else 0


def _add_demo(commands: Any) -> None:
    parser = add_command(
        commands,
        "demo",
        _demo,
        "Make a small data set, train on it and show what was found. Some minutes on two cores.",
        "examples:\n  bgad demo\n  bgad demo --methods nfad,bgad --seeds 3",
    )
    parser.add_argument("--out", type=Path, default=Path("bgad-demo"), metavar="DIR", help="default ./bgad-demo")
    parser.add_argument("--methods", default="bgad", metavar="A,B", help=f"of {', '.join(METHODS)} (default bgad)")
    parser.add_argument(
        "--seeds", type=number(int, 1), default=1, metavar="N", help="train with seeds 0 to N-1 (default 1)"
    )
    parser.add_argument("--known", type=number(int, 0), default=10, metavar="N", help="known anomalies (default 10)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")


def _demo(arguments: argparse.Namespace) -> int:
    from bgad.cli.demo import run_demo
    from bgad.cli.interrupt import stop_on_interrupt

    methods = list(dict.fromkeys(name.strip() for name in arguments.methods.split(",")))
    for method in methods:
        if method not in METHODS:
            raise ConfigError(f"unknown method {method!r}: choose from {', '.join(METHODS)}")
    with console.progress() as progress, stop_on_interrupt() as stop:
        cells = run_demo(arguments.out, methods, arguments.seeds, arguments.known, arguments.device, progress, stop)
    from bgad.cli.tables import evaluation_table

    console.stdout_console().print(evaluation_table(cells))
    out = quote(str(arguments.out))
    console.say(f"figures: {out}/results.json\nreport:  {out}/report.html   (open it in a browser)")
    console.say(f"next: bgad predict {out}/washer.bgad {out}/data/washer/test/scratch --out {out}/looked-at")
    return 0


def _add_pseudo(commands: Any) -> None:
    parser = add_command(
        commands,
        "pseudo",
        _pseudo,
        "Draw a contact sheet of the pseudo anomalies that training would make.",
        DATA_HELP
        + "\nhow they are made (--set pseudo.method=NAME):\n"
        + "".join(f"  {name:<6} {text}\n" for name, text in PSEUDO_METHODS.items() if name != "none")
        + "\nexamples:\n  bgad pseudo gears\n  bgad pseudo gears --count 60 --set pseudo.method=nsa --out nsa.png",
    )
    add_data(parser)
    parser.add_argument("--out", type=Path, default=Path("pseudo.png"), metavar="FILE", help="default ./pseudo.png")
    parser.add_argument("--count", type=number(int, 1), default=24, metavar="N", help="how many (default 24)")
    parser.add_argument("--known", type=number(int, 0), metavar="N", help="as for train")
    _add_max_bad(parser)
    add_recipe(parser)


def _pseudo(arguments: argparse.Namespace) -> int:
    from bgad.data import locate
    from bgad.data.split import make_split
    from bgad.data.validation import scan_images
    from bgad.io import images

    config = read_config(arguments)
    output_files.check_file(arguments.out, ".png")
    dataset = locate.load(arguments.data, arguments.root)
    from bgad.pseudo.contact_sheet import contact_sheet
    from bgad.pseudo.generate import can_generate, generate

    with console.progress() as progress:
        dataset, scan = scan_images(dataset, arguments.max_bad, progress)
    for note in dataset.notes:
        console.warn(note)
    split = make_split(dataset, seed=config.seed, known=arguments.known)
    known = [s for s in split.known if s.mask is not None]
    method = config.pseudo.method if config.pseudo.method != "none" else "rpag"
    if not can_generate(method, known):
        raise DataError(
            f"{arguments.data}: {method} cuts pseudo anomalies from known anomalies with masks; there are none: "
            "mark some, or --set pseudo.method=nsa"
        )
    size = (config.backbone.size, config.backbone.size)
    with console.progress() as progress:
        task = ProgressTask(progress, "pseudo anomalies", arguments.count)
        tiles = []
        for tile in generate(
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
            task.advance()
    images.save_png(contact_sheet(tiles), arguments.out)
    console.say(f"contact sheet: {arguments.out}")
    return 0


def _add_info(commands: Any) -> None:
    parser = add_command(
        commands,
        "info",
        _info,
        "Say what a model is: data, recipe, threshold and its guarantee. Checks every byte of the folder.",
        "examples:\n  bgad info gear.bgad\n  bgad info --recipe > recipe.toml     (all keys with their defaults)",
    )
    parser.add_argument("model", type=Path, metavar="MODEL", nargs="?")
    parser.add_argument("--json", action="store_true", help="the whole card as JSON")
    parser.add_argument("--recipe", action="store_true", help="the recipe as TOML: the model's, or the preset's")
    parser.add_argument("--preset", choices=list(PRESETS), help="with --recipe and no MODEL")


def _info(arguments: argparse.Namespace) -> int:
    from bgad.artifact import folder as modelfile
    from bgad.config import from_dict

    if arguments.json and arguments.recipe:
        raise ConfigError("--json has the whole card, the recipe included: leave out --recipe")
    if arguments.model is None:
        if not arguments.recipe:
            raise ConfigError("give a MODEL, or --recipe for the default one")
        print(to_toml(PRESETS[arguments.preset or "default"]), end="")  # noqa: T201
        return 0
    if arguments.preset:
        raise ConfigError("a model has a recipe of its own: leave out --preset, or the MODEL")
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
    parser = add_command(
        commands,
        "datasets",
        _datasets,
        "List the public data sets that bgad knows by name, and what of them is on disk. Nothing is downloaded.",
        "examples:\n  bgad datasets\n  bgad datasets --root /data --json",
    )
    add_root(parser)
    parser.add_argument("--json", action="store_true", help="everything as JSON")


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
