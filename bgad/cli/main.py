"""The command line: parses, calls, prints. Data goes to stdout, everything for people to stderr."""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress

from bgad._version import __version__
from bgad.cli import console
from bgad.cli.benchmark import add_benchmark
from bgad.cli.demo import add_demo
from bgad.cli.evaluate import add_evaluate
from bgad.cli.export import add_export
from bgad.cli.info import add_datasets, add_info
from bgad.cli.options import Parser
from bgad.cli.predict import add_predict
from bgad.cli.pseudo import add_pseudo
from bgad.cli.service import add_serve, add_token, add_update
from bgad.cli.train import add_train
from bgad.errors import BgadError, ConfigError

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
    add_demo(commands)
    add_train(commands)
    add_predict(commands)
    add_evaluate(commands)
    add_update(commands)
    add_serve(commands)
    add_token(commands)
    add_export(commands)
    add_pseudo(commands)
    add_info(commands)
    add_benchmark(commands)
    add_datasets(commands)
    return parser
