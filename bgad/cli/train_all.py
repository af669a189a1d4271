"""The command `bgad train-all`."""

from __future__ import annotations

import argparse
import csv
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bgad.artifact.folder import CARD
from bgad.cli import console
from bgad.cli.options import Parser, add_cluster_tasks, add_command, on_cluster
from bgad.errors import BgadError, ConfigError, DataError
from bgad.io.files import sha256_json, write_atomic
from bgad.types import ProgressTask

if TYPE_CHECKING:
    from bgad.cluster.tasks import Resources

EXIT_FAILED_PARTS = 1
MANIFEST_HELP = """MANIFEST lists one model per part, with options of `bgad train` under their long names:
  .csv    columns data and out, and one for each option: data,out,known,false-reject-rate
  .toml   [[part]] tables: data = "parts/gear", out = "gear.bgad", known = 10; [defaults] holds for all of them
Paths are taken below the folder of the manifest. A part whose model exists is finished. A part that was stopped goes
on from its checkpoint.

examples:
  bgad train-all plant.toml
  bgad train-all plant.csv --cluster 10.0.0.1:6379 --cpus-per-task 4
"""
_READ = ("data", "config", "split", "roi", "weights", "root")  # options that name files to read
_WRITTEN = ("out", "tensorboard")  # options that name folders to write
# What the command decides, and what is no option of a training.
_REFUSED = ("resume", "overwrite", "cluster", "cpus-per-task", "gpus-per-task", "help")
_OPTION = re.compile("[a-z][a-z0-9-]*")


@dataclass(frozen=True)
class Part:
    """One model to train: the words of its `bgad train` command."""

    name: str
    out: Path
    words: tuple[str, ...]


def add_train_all(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "train-all",
        _train_all,
        "Train one model per part from a list of parts, here or on a cluster. The same command continues a run.",
        MANIFEST_HELP,
    )
    parser.add_argument("manifest", type=Path, metavar="MANIFEST", help="a .csv or .toml file, see below")
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="train parts again whose model exists; a run that was stopped goes on with those that it has not replaced",
    )
    add_cluster_tasks(parser, "every node must see the data and the models under the same paths")


def read_parts(manifest: Path) -> list[Part]:
    """Return the parts of a manifest; DataError names the part and the option that is wrong."""
    parts: list[Part] = []
    for where, values in _tables(manifest):
        for key in ("data", "out"):
            if not values.get(key):
                raise DataError(f"{where}: has no {key}")
        for key in values:
            if key in _REFUSED or not _OPTION.fullmatch(key):
                raise DataError(f"{where}: {key} is not an option of a part: leave it out")
        if str(values["data"]).startswith("-"):
            raise DataError(f"{where}: data is {values['data']}: give a folder, a manifest or a public data set")
        words = tuple(_words(values, manifest.parent.absolute()))
        _check(where, words)
        out = (manifest.parent.absolute() / str(values["out"])).absolute()
        if twice := next((part for part in parts if part.out == out), None):
            raise DataError(f"{where}: {out} is the model of {twice.name} already")
        parts.append(Part(where.rpartition(": ")[2], out, words))
    if not parts:
        raise DataError(f"{manifest}: lists no part")
    return parts


def _tables(manifest: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield where each part stands, and its options."""
    try:
        if manifest.suffix.lower() == ".csv":
            with manifest.open(encoding="utf-8-sig", newline="") as file:
                for number, row in enumerate(csv.DictReader(file, strict=True), start=2):
                    if None in row:
                        raise DataError(f"{manifest}: row {number}: has more cells than the first row has columns")
                    values = {str(key).strip(): value.strip() for key, value in row.items() if value and value.strip()}
                    yield f"{manifest}: row {number}", values
            return
        if manifest.suffix.lower() != ".toml":
            raise DataError(f"{manifest}: a list of parts is a .csv or .toml file")
        content = tomllib.loads(manifest.read_text("utf-8"))
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{manifest}: cannot be read: {error}") from error
    if unknown := sorted(set(content) - {"defaults", "part"}):
        raise DataError(f"{manifest}: unknown table {unknown[0]}: it has [defaults] and [[part]]")
    parts = content.get("part", [])
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise DataError(f"{manifest}: parts are [[part]] tables, with two brackets")
    defaults = content.get("defaults", {})
    if not isinstance(defaults, dict):
        raise DataError(f"{manifest}: defaults is not a table: write [defaults] and its options below it")
    for number, part in enumerate(parts, start=1):
        yield f"{manifest}: part {number}", defaults | part


def _words(values: dict[str, Any], base: Path) -> Iterator[str]:
    """Yield the words of the `bgad train` command of a part."""
    yield _path(values["data"], base)
    for key, value in values.items():
        if key == "data":
            continue
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, bool):
                if one:
                    yield f"--{key}"
            else:
                yield f"--{key}"
                yield str(base / str(one)) if key in _WRITTEN else _path(one, base) if key in _READ else str(one)


def _path(value: object, base: Path) -> str:
    """Return a path below the manifest's folder; the name of a public data set stays as it is."""
    below = base / str(value)
    return str(below) if below.exists() else str(value)


def _check(where: str, words: tuple[str, ...]) -> None:
    """Parse the command of a part, so that a wrong option is told before anything is trained."""
    from bgad.cli.options import read_config
    from bgad.cli.train import add_train

    parser = Parser(prog="bgad")
    commands = parser.add_subparsers(dest="command", required=True)
    add_train(commands)
    try:
        arguments, unknown = parser.parse_known_args(["train", *words])
        if unknown:
            raise ConfigError(f"unrecognized option {unknown[0]}")
        read_config(arguments)
    except ConfigError as error:
        raise DataError(f"{where}: {error}") from error


class Replaced:
    """The parts whose models a run with --overwrite has replaced, in a file beside the manifest until all are.

    It is how the same command continues: a model that exists does not tell which run has written it.
    """

    def __init__(self, manifest: Path) -> None:
        self.file = manifest.with_name(f"{manifest.name}.replaced")
        try:
            self._parts: list[str] = json.loads(self.file.read_bytes()) if self.file.exists() else []
        except (OSError, ValueError) as error:
            raise DataError(f"{self.file}: cannot be read: delete it, and all models are trained again") from error

    def __contains__(self, part: Part) -> bool:
        """Return whether the model of a part, with the options that it has now, has been replaced."""
        return sha256_json(part.words) in self._parts and (part.out / CARD).exists()

    def add(self, part: Part) -> None:
        """Remember a part."""
        self._parts.append(sha256_json(part.words))
        write_atomic(self.file, json.dumps(self._parts).encode())

    def forget(self) -> None:
        """Delete the file: the next run replaces all models again."""
        self.file.unlink(missing_ok=True)


def _train_all(arguments: argparse.Namespace) -> int:
    parts = read_parts(arguments.manifest)
    replaced = Replaced(arguments.manifest) if arguments.overwrite else None
    finished = [part for part in parts if ((part.out / CARD).exists() if replaced is None else part in replaced)]
    left = [part for part in parts if part not in finished]
    if finished:
        which = "exist already" if replaced is None else f"are new already; delete {replaced.file} to train them again"
        console.say(f"{len(finished)} of {len(parts)} models {which}")
    failed = 0
    with on_cluster(arguments) as resources:
        ends = (
            _here(left, arguments.overwrite) if resources is None else _on_tasks(left, arguments.overwrite, resources)
        )
        for part, error in ends:
            if error is not None:
                failed += 1
                console.warn(f"{part.name}: {error}")
            elif replaced is not None:
                replaced.add(part)
    if replaced is not None and not failed:
        replaced.forget()
    console.say(f"{len(parts) - failed} of {len(parts)} models are there")
    return EXIT_FAILED_PARTS if failed else 0


def _here(parts: list[Part], overwrite: bool) -> Iterator[tuple[Part, BgadError | None]]:
    """Train parts one after the other, each with a progress bar of its own; yield each as it ends."""
    for number, part in enumerate(parts, start=1):
        console.say(f"{number} of {len(parts)}: {part.out.name}")
        try:
            train_part((part, overwrite))
            yield part, None
        except BgadError as error:
            yield part, error


def _on_tasks(parts: list[Part], overwrite: bool, resources: Resources) -> Iterator[tuple[Part, BgadError | None]]:
    """Train parts as tasks on the cluster; yield each as it ends. Ctrl-C lets those under way end."""
    from bgad.cluster.tasks import run_tasks

    with console.progress() as progress, console.stop_on_interrupt(terminate=True) as stop, stop.honour():
        task = ProgressTask(progress, "models", len(parts))
        for done in run_tasks(train_part, [(part, overwrite) for part in parts], resources, stop):
            yield parts[done.index], done.error
            task.advance(1, parts[done.index].out.name)
        if stop.requested:
            console.say("stopped; the same command continues")
            raise KeyboardInterrupt


def train_part(piece: tuple[Part, bool]) -> None:
    """Train one part as `bgad train` does; goes on from a checkpoint where there is one."""
    from bgad.cli.train import add_train
    from bgad.methods.checkpoint import unfinished

    part, overwrite = piece
    parser = Parser(prog="bgad")
    add_train(parser.add_subparsers(dest="command", required=True))
    more = [*(["--resume"] if unfinished(part.out) else []), *(["--overwrite"] if overwrite else [])]
    arguments = parser.parse_args(["train", *part.words, *more])
    part.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.run(arguments)
