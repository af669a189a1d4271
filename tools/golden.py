"""Compare what two commits of bgad do, on this machine: `python tools/golden.py BEFORE AFTER`.

Each commit is checked out into a temporary worktree and runs the same jobs there: it writes the demo's fabric, trains
it with a short schedule and a fixed seed, trains tiles of it, updates the model, and scores twenty images on every
engine. Compared are the bytes of `flow.safetensors`, scores and JSON lines, figures of `evaluate`, public names and
signatures, the options of every command and the OpenAPI schema. Prose (help texts, descriptions) is not compared.

Intended renames and changes stand in `tools/golden_renames.toml`; whatever else differs is reported, and the exit code
is 1. No result is stored: other CPUs give other bits, so both commits run side by side on the machine at hand.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RENAMES = HERE / "golden_renames.toml"
IMAGES = 20
ENGINES = ("onnx", "openvino", "torch")
SHORT = ["train.steps=60", "train.push_steps=40", "pseudo.count=16"]
PROSE = ("description", "summary", "title", "operationId", "example", "examples", "tags", "info")

# Runs inside of a commit's own process; knows no module of the package by name but those of the map.
PROBE = """
import argparse, importlib, inspect, json, pathlib, sys
job, result, argument = sys.argv[1:4]
sys.argv = ["bgad"]
import bgad

def option(action):
    return {"flags": list(action.option_strings) or [action.dest], "default": repr(action.default),
            "choices": sorted(map(str, action.choices)) if isinstance(action.choices, (list, tuple)) else None,
            "nargs": action.nargs, "required": action.required, "action": type(action).__name__}

def caught(main, words):
    try:
        main(words)
    except Caught as parsed:
        return commands(parsed.args[0])

def names(main):
    try:
        main([])
    except Caught as parsed:
        return [name for action in parsed.args[0]._actions if isinstance(action, argparse._SubParsersAction)
                for name in action.choices]

def commands(parser):
    found = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                found |= {f"{name} {key}".strip(): value for key, value in commands(inner).items()}
        else:
            found[" ".join(action.option_strings[-1:]) or action.dest] = option(action)
    return found

class Caught(Exception):
    pass

def catch(self, *args, **kwargs):
    raise Caught(self)

if job == "names":
    def signature(value):
        if not callable(value) or inspect.isclass(value):
            return sorted(getattr(value, "__dataclass_fields__", {}))
        return {name: repr(p.default) for name, p in inspect.signature(value).parameters.items()}
    found = {name: signature(getattr(bgad, name)) for name in bgad.__all__ if name != "__version__"}
elif job == "options":
    argparse.ArgumentParser.parse_known_args = catch
    main = importlib.import_module(argument).main
    found = {}
    for name in ["", *names(main)]:
        options = caught(main, [name] if name else [])
        found |= {key: value for key, value in options.items() if key.partition(" ")[0] == name or " " not in key}
elif job == "demo":
    for entry in json.loads(argument)["demo"]:
        module, name = entry.split(":")
        try:
            made = getattr(importlib.import_module(module), name)
        except ModuleNotFoundError:
            continue
        made(pathlib.Path(json.loads(argument)["to"]))
        break
    found = None
elif job == "where":
    found = str(pathlib.Path(bgad.__file__).resolve())
pathlib.Path(result).write_text(json.dumps(found))
"""


class Commit:
    """One commit in a worktree of its own, with what its jobs gave."""

    def __init__(self, revision: str, folder: Path, renames: dict[str, Any]) -> None:
        self.revision, self.folder, self.renames = revision, folder, renames
        self.tree, self.work = folder / "tree", folder / "work"
        self.work.mkdir(parents=True)
        _git("worktree", "add", "--detach", "--quiet", str(self.tree), revision)
        self.environment = os.environ | {
            "PYTHONPATH": str(self.tree),
            "BGAD_STATE": str(folder / "state"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def probe(self, job: str, argument: str = "") -> Any:
        """Run a job of PROBE in this commit."""
        result = self.work / f"{job}.json"
        self._call([sys.executable, "-c", PROBE, job, str(result), argument], job)
        return json.loads(result.read_text())

    def bgad(self, *arguments: str | Path, codes: tuple[int, ...] = (0,)) -> str:
        """Run a command of bgad; its standard output."""
        return self._call([sys.executable, "-m", "bgad", *map(str, arguments)], arguments[0], codes)

    def _call(self, command: list[str], what: object, codes: tuple[int, ...] = (0,)) -> str:
        done = subprocess.run(command, cwd=self.work, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode not in codes:
            raise SystemExit(f"{self.revision}: {what} failed with {done.returncode}:\n{done.stderr[-3000:]}")
        return done.stdout

    def run(self) -> dict[str, Any]:
        """Everything that is compared."""
        found = Path(self.probe("where"))
        if not found.is_relative_to(self.tree.resolve()):
            raise SystemExit(f"{self.revision}: bgad was imported from {found}, not from the worktree")
        return {
            "public names": self.probe("names"),
            "options": self._options(),
            **self._models(),
            "openapi": self._openapi(),
        }

    def _options(self) -> Any:
        modules = self.renames["entry"]["main"]
        for module in modules:
            path = self.tree / (module.replace(".", "/") + ".py")
            if path.exists():
                return self.probe("options", module)
        raise SystemExit(f"{self.revision}: none of {modules} is there")

    def _recipe(self) -> dict[str, Any]:
        """The default recipe."""
        return tomllib.loads(self.bgad("info", "--recipe"))

    def _methods(self, *names: str) -> str:
        """Methods with commas between; under the new names of the map, where this commit has a key for the method."""
        renamed = self.renames["methods"] if "method" in self._recipe() else {}
        return ",".join(renamed.get(name, name) for name in names)

    def _set(self, values: list[str]) -> list[str]:
        """`--set` options; a key of the map under its new name, where this commit has it."""
        known = {f"{part}.{key}" for part, keys in self._recipe().items() if isinstance(keys, dict) for key in keys}
        renamed = self.renames["config"]
        given = []
        for value in values:
            key, _, text = value.partition("=")
            new = renamed.get(key, key)
            if new:
                given += ["--set", f"{new if new in known else key}={text}"]
        return given

    def _models(self) -> dict[str, Any]:
        data = self.work / "data"
        self.probe("demo", json.dumps({"demo": self.renames["entry"]["demo"], "to": str(data)}))
        fabric, model = data / "fabric", self.work / "fabric.bgad"
        self.bgad("train", fabric, "--out", model, "--known", "8", "--seed", "3", *self._set(SHORT))
        self.bgad("export", model, "--to", "openvino")
        images = sorted((fabric / "test").rglob("*.png"))
        chosen = [images[i * (len(images) - 1) // (IMAGES - 1)] for i in range(IMAGES)]
        result: dict[str, Any] = {
            "demo images": {str(p.relative_to(data)): _sha(p) for p in sorted(data.rglob("*.png"))},
            "flow.safetensors": self._tensors(model),
        }
        for engine in ENGINES:
            text = self.bgad("predict", model, *chosen, "--engine", engine, "--threads", "2", "--batch", "4")
            result[f"predict --engine {engine}"] = [json.loads(line) for line in text.splitlines()]
        broken = self.work / "broken.png"
        broken.write_bytes(b"no image")
        text = self.bgad("predict", model, chosen[0], broken, chosen[-1], "--out", self.work / "rows", codes=(1,))
        result["predict --out"] = [json.loads(line) | {"error": None} for line in text.splitlines()]
        written = sorted(p.relative_to(self.work / "rows") for p in (self.work / "rows").rglob("*") if p.is_file())
        result["predict --out, maps"] = {str(p): _sha(self.work / "rows" / p) for p in written if p.suffix == ".tif"}
        self.bgad("evaluate", model, fabric, "--out", self.work / "report")
        figures = json.loads((self.work / "report" / "results.json").read_text())
        result["evaluate"] = _numbers(figures)
        result |= self._others(fabric, model, chosen)
        return result

    def _others(self, fabric: Path, model: Path, chosen: list[Path]) -> dict[str, Any]:
        """Tiles, an update, the paper's methods that push, and a benchmark."""
        tiled, taught = (self.work / f"{name}.bgad" for name in ("tiled", "taught"))
        short = self._set(SHORT)
        self.bgad("train", fabric, "--out", tiled, "--known", "4", "--tile", "128", *short)
        printed: dict[str, dict[str, str]] = {}
        for method in ("bgad", "bgad-full-push") if "method" in self._recipe() else ():  # before, they were not printed
            model_of_paper = self.work / f"printed-{method}.bgad"
            options = ["--known", "4", "--method", method, "--backbone", "lite0", "--size", "128", *short]
            self.bgad("train", fabric, "--out", model_of_paper, *options)
            printed[method] = self._tensors(model_of_paper)
        self.bgad("update", model, "--bad", chosen[-1], "--data", fabric, "--out", taught)
        out = self.work / "benchmark"
        arguments: list[str | Path] = ["--data", fabric, "--known", "4", "--seeds", "1", "--out", out]
        self.bgad("benchmark", *arguments, "--methods", self._methods("nfad", "bgad"), *short)
        cells = json.loads((out / "results.json").read_text())
        text = self.bgad("predict", tiled, *chosen[:4], "--threads", "2")
        return {
            "tiles: flow.safetensors": self._tensors(tiled),
            "tiles: predict": [json.loads(line) for line in text.splitlines()],
            "the paper's: flow.safetensors": printed,
            "update: flow.safetensors": self._tensors(taught),
            "benchmark": _numbers(cells),
        }

    def _tensors(self, model: Path) -> dict[str, str]:
        """Of each tensor in the file the sha256 of type, shape and bytes."""
        content = (model / "flow.safetensors").read_bytes()
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        found = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            start, end = (8 + size + offset for offset in entry["data_offsets"])
            about = f"{entry['dtype']} {entry['shape']} ".encode()
            found[name] = hashlib.sha256(about + content[start:end]).hexdigest()
        return found

    def _openapi(self) -> Any:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "bgad", "serve", "--models", str(self.work), "--port", str(port)]
        with subprocess.Popen(
            command, cwd=self.work, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as service:
            try:
                for _ in range(120):
                    time.sleep(0.5)
                    try:
                        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/openapi.json", timeout=5) as answer:
                            return _without_prose(json.load(answer))
                    except OSError:
                        continue
                raise SystemExit(f"{self.revision}: the service did not start")
            finally:
                service.terminate()


def _git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=HERE.parent, check=True)


def _sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _without_prose(value: Any, inside: str = "") -> Any:
    if isinstance(value, dict):
        names = inside == "properties"  # a property may be called `title`
        return {k: _without_prose(v, k) for k, v in value.items() if names or k not in PROSE}
    return [_without_prose(v) for v in value] if isinstance(value, list) else value


def _numbers(value: Any, path: str = "") -> dict[str, float]:
    """Every number of a result under its path; times are left out."""
    found: dict[str, float] = {}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        if not re.search("second|time|created|ms_", str(key)):
            found |= _numbers(inner, f"{path}/{key}")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        found[path] = value
    return found


def _renamed(value: Any, names: dict[str, str]) -> Any:
    """With every key and every text of the map under its new name; a key that maps to nothing is left out."""
    if isinstance(value, dict):
        return {_name(k, names): _renamed(v, names) for k, v in value.items() if names.get(k) != ""}
    if isinstance(value, list):
        return [_renamed(v, names) for v in value if not isinstance(v, str) or names.get(v) != ""]
    return _name(value, names) if isinstance(value, str) else value


def _name(text: str, names: dict[str, str]) -> str:
    if text in names:
        return names[text]
    for old, new in names.items():
        if old.startswith("re:") and re.search(old[3:], text):
            return re.sub(old[3:], new, text)
    return text


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """Where two results differ, one line each."""
    if isinstance(before, dict) and isinstance(after, dict):
        found = []
        for key in sorted({*before, *after}):
            if key not in after:
                found.append(f"{path}: {key} is gone")
            elif key not in before:
                found.append(f"{path}: {key} is new")
            else:
                found += differences(before[key], after[key], f"{path} > {key}")
        return found
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [line for i, (a, b) in pairs for line in differences(a, b, f"{path}[{i}]")]
    return [] if before == after else [f"{path}: {_short(before)} became {_short(after)}"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 160 else f"{text[:160]}..."


def compare(before: dict[str, Any], after: dict[str, Any], renames: dict[str, Any]) -> list[str]:
    """Every difference that the map does not name."""
    found = []
    for part, value in before.items():
        names: dict[str, str] = next((renames[key] for key in renames if part.endswith(key)), {})
        allowed = [re.compile(pattern) for pattern in renames["allowed"].get(part, [])]
        lines = differences(_renamed(value, names), after[part], part)
        found += [line for line in lines if not any(pattern.search(line) for pattern in allowed)]
    return found


def main() -> int:
    """Run both commits, compare, report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("before", help="commit")
    parser.add_argument("after", help="commit")
    parser.add_argument("--renames", type=Path, default=RENAMES, metavar="FILE", help="map of the intended renames")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the results of BEFORE there for the next run")
    arguments = parser.parse_args()
    renames = tomllib.loads(arguments.renames.read_text())
    with tempfile.TemporaryDirectory(prefix="bgad-golden-") as name:
        results = []
        for which, revision in (("before", arguments.before), ("after", arguments.after)):
            print(f"{which}: {revision}", file=sys.stderr, flush=True)
            results.append(_result(revision, Path(name) / which, renames, arguments.keep))
        lines = compare(results[0], results[1], renames)
    for line in lines:
        print(line)
    parts = ", ".join(results[0])
    print(f"{len(lines)} differences that the map does not name; compared: {parts}")
    return 1 if lines else 0


def _result(revision: str, folder: Path, renames: dict[str, Any], keep: Path | None) -> dict[str, Any]:
    """What a commit gives; with `keep`, once for each commit."""
    command = ["git", "rev-parse", revision]
    commit = subprocess.run(command, cwd=HERE.parent, check=True, capture_output=True, text=True).stdout.strip()
    kept = None if keep is None else keep / f"{commit}.json"
    if kept is not None and kept.exists():
        return dict(json.loads(kept.read_text()))
    began = time.monotonic()
    try:
        found = Commit(revision, folder, renames).run()
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(folder / "tree")], cwd=HERE.parent, check=False)
    print(f"  {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    found = json.loads(json.dumps(found).replace(str(folder / "work"), "WORK"))
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(found))
    return dict(found)


if __name__ == "__main__":
    sys.exit(main())
