"""The command line: parses, calls, prints. Data goes to stdout, everything for people to stderr."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

from bgad._version import __version__
from bgad.cli import console
from bgad.cli.interrupts import EXIT_INTERRUPTED
from bgad.cli.options import Parser
from bgad.errors import BgadError, ConfigError, is_out_of_memory

EXIT_ERROR = 2
EXIT_CLOSED_PIPE = 141  # 128 + SIGPIPE, as a shell reports it of other tools
COMMANDS = {  # name -> the module that adds it to the parser, and its line in the overview
    "demo": ("bgad.cli.demo", "Write a small data set, train on it and show the results"),
    "train": ("bgad.cli.train", "Train a model on a folder of images"),
    "train-all": ("bgad.cli.train_all", "Train one model per part from a list of parts"),
    "predict": ("bgad.cli.predict", "Score images with a model"),
    "manifest": ("bgad.cli.manifest", "List the images of an archive for `bgad predict --cluster`"),
    "evaluate": ("bgad.cli.evaluate", "Measure a model on labelled images that it has not seen"),
    "update": ("bgad.cli.update", "Teach a model new good parts and new defects"),
    "serve": ("bgad.cli.service", "Start the workbench: score, review, teach, compare and release"),
    "store": ("bgad.cli.service", "upgrade the store of the workbench to this version"),
    "token": ("bgad.cli.service", "Create, list or revoke the access tokens of the workbench"),
    "export": ("bgad.cli.export", "Write a model's graph, which scores without torch"),
    "pseudo": ("bgad.cli.pseudo", "Draw a contact sheet of the pseudo anomalies that training would use"),
    "info": ("bgad.cli.info", "Describe a model: data, recipe, threshold and its guarantee"),
    "benchmark": ("bgad.cli.benchmark", "Run methods, data sets, protocols and seeds beside printed figures"),
    "compare": ("bgad.cli.compare", "Find out which method suits your images"),
    "figures": ("bgad.cli.figures", "Draw the paper's figures for a data set"),
    "datasets": ("bgad.cli.info", "List the public data sets that bgad knows by name"),
}
LESS_MEMORY = {  # what to change when a command runs out of memory
    "predict": "use --threads 1 (on a GPU also --batch 1), and --no-overlays where overlays are not needed",
    "evaluate": "use --threads 1 (on a GPU also --batch 1)",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code.

    0: done, 1: some images could not be scored, 2: error, 130: Ctrl-C, 141: nobody reads the output any more.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file name need not fit the terminal's encoding
    console.show_log()
    words = sys.argv[1:] if argv is None else argv
    try:
        return _run(words)
    except BgadError as error:
        return _fail(str(error))
    except ModuleNotFoundError as error:
        if error.name in ("torch", "torchvision", "timm", "safetensors"):
            return _fail(f"this command needs {error.name}, which is not installed: pip install 'bgad[train]'")
        if error.name in ("ray", "pyarrow"):
            return _fail(f"this command needs {error.name}, which is not installed: pip install 'bgad[ray]'")
        if error.name in ("sqlalchemy", "alembic", "fastapi", "uvicorn", "prometheus_client"):
            return _fail(f"this command needs {error.name}, which is not installed: pip install 'bgad[serve]'")
        raise
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as in `bgad predict ... | head`
        _close_stdout()
        return EXIT_CLOSED_PIPE
    except OSError as error:
        if not error.filename:  # a stream, not a file
            _close_stdout()
        return _fail(f"{error.filename or 'input or output'}: {error.strerror or error}")
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        command = next((word for word in words if word in COMMANDS), "")
        return _fail(f"out of memory: {LESS_MEMORY.get(command, 'lower --memory, --size or train.images_per_step')}")


def _run(words: Sequence[str]) -> int:
    """Parse and run one command, and write out what it printed: a full disk or a closed pipe is told then."""
    try:
        arguments, unknown = _parser(words).parse_known_args(words)
        if unknown:
            raise ConfigError(f"unrecognized arguments: {' '.join(unknown)}; see bgad {arguments.command} --help")
        code = int(arguments.run(arguments))
    except SystemExit:  # of --help and --version
        print(end="", flush=True)  # noqa: T201
        raise
    print(end="", flush=True)  # noqa: T201
    return code


def _close_stdout() -> None:
    """Let what is still buffered go nowhere: the interpreter would try to write it again on its way out."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str) -> int:
    console.fail(message)
    return EXIT_ERROR


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """Build the parser; only the module of the command at hand is imported, so that a command starts quickly."""
    parser = Parser(
        prog="bgad",
        description="Find defects in images: learn normal from good images, sharpen its boundary with a few bad ones.",
        epilog="Start with `bgad demo`, then `bgad train FOLDER` on your own images. "
        "Each command explains itself with --help.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"bgad {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    for name, (module, text) in COMMANDS.items():
        if name in argv:
            getattr(import_module(module), f"add_{name.replace('-', '_')}")(commands)
        else:
            commands.add_parser(name, help=text)
    return parser
