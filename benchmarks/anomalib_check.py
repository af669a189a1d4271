"""Our PaDiM, PatchCore, CFA, MSFD and DRAEM against anomalib's: `python -m benchmarks.anomalib_check`.

Both sides have the same split of a category of MVTec AD, the same pixels, the weights of EfficientNet-Lite0 and the
same number of steps; the image AUROC of both is computed by `bgad.metrics`. Anomalib has an environment of its own,
made on the first run. Stride 4 is not pooled on either side. Each (system, side) is a file in the output folder, so a
run that was killed continues; anomalib_check.md is the table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import ANOMALIB, anomalib_python, machine, read_stored
from bgad import metrics
from bgad._version import __version__
from bgad.benchmark.paper_tables import Column, Matrix, PaperTable
from bgad.benchmark.plan import plan
from bgad.benchmark.runner import BenchmarkOptions, run
from bgad.cli import console
from bgad.config import BackboneConfig, Config, override, preset_for
from bgad.config.baselines import PIXELS
from bgad.config.unsupervised import TrainedConfig
from bgad.data.layouts import Dataset
from bgad.data.protocols import Case, protocol_split
from bgad.data.sample_io import MAX_UNREADABLE, ImageCache, validate_images
from bgad.data.split import Split
from bgad.errors import BgadError, DataError
from bgad.inference.torch_engine import new_model
from bgad.io.files import check_folder, locked, sha256_json, write_atomic
from bgad.model import backbone as backbones
from bgad.model.device import tune_allocator

SCRIPT = Path(__file__).with_name("_anomalib_scores.py")
PAGE = "anomalib_check.md"
WHOLE_STRIDE_4 = ("backbone.min_stride=0",)
SEED = 0
OURS, THEIRS = SIDES = ("ours", "anomalib")


@dataclass(frozen=True)
class System:
    """One of our baselines and its counterpart."""

    method: str
    note: str  # what differs beyond random draws
    changes: tuple[str, ...] = ()


SYSTEMS = {
    "padim": System("padim", "nothing: anomalib is given the channels that ours draws", WHOLE_STRIDE_4),
    "patchcore": System("patchcore", "anomalib projects to as many dimensions as scikit-learn chooses", WHOLE_STRIDE_4),
    "cfa": System(
        "cfa",
        "anomalib has no Lite0: its extractor and the channels of its descriptor are replaced; its memory bank is the "
        "mean of the normals at each position, and its radius is not learnt",
        WHOLE_STRIDE_4,
    ),
    "stfpm": System(
        "msfd",
        "our student learns the coarser features from the teacher's finest ones, anomalib's is a second Lite0 on the "
        "image; weight decay 1e-4 (printed) and 1e-3",
        WHOLE_STRIDE_4,
    ),
    "draem": System(
        "draem",
        "anomalib's synthetic anomalies have a texture of noise, ours that of other normals; its anomaly map is not "
        "averaged before the maximum; it does not lower the learning rate in so few epochs",
    ),
}


@dataclass(frozen=True)
class Schedule:
    """How long systems are trained that are trained by steps, on both sides."""

    steps: int  # of CFA and STFPM; 0: those of the recipe
    draem_epochs: int

    def changes(self, system: str) -> tuple[str, ...]:
        """Return the changes to the recipe of a system."""
        if system == "draem":
            return (f"baseline.epochs={self.draem_epochs}",)
        return (f"baseline.steps={self.steps}",) if self.steps and system in ("cfa", "stfpm") else ()


@dataclass(frozen=True)
class Setting:
    """The data and the split that both sides share, and where the results go."""

    category: str
    root: Path | None
    dataset: Dataset
    split: Split
    out: Path
    schedule: Schedule

    def config(self, system: str) -> Config:
        """Return our recipe of a system."""
        entry = SYSTEMS[system]
        return override(preset_for(entry.method, None), [*entry.changes, *self.schedule.changes(system)])

    def steps(self, config: Config) -> int:
        """Return the number of steps; 0 where a system is not trained by steps."""
        return config.baseline.step_count(len(self.split.train)) if isinstance(config.baseline, TrainedConfig) else 0

    def key(self, system: str, side: str) -> str:
        """Return the fingerprint of one side of a system; another one is measured again."""
        config, record = self.config(system), self.split.to_json()
        version = __version__ if side == OURS else ANOMALIB
        return sha256_json([side, version, system, asdict(config), record, torch.__version__])


def prepare(category: str, root: Path | None, out: Path, schedule: Schedule) -> Setting:
    """Read the category and divide it; DataError where it is not on disk."""
    (group,) = plan((Matrix({"mvtec": (category,)}, "unsupervised", (Column("padim", "padim"),), seeds=1),), root)
    if group.dataset is None:
        raise DataError(group.reason)
    split = protocol_split(group.dataset, "unsupervised", Case(), known=0, seed=SEED)
    return Setting(category, root, group.dataset, split, out, schedule)


def ours(system: str, setting: Setting) -> dict[str, Any]:
    """Return scores and seconds of our side, from a cell of a benchmark."""
    method = SYSTEMS[system].method
    matrix = Matrix({"mvtec": (setting.category,)}, "unsupervised", (Column(method, method),), seeds=1)
    options = BenchmarkOptions(root=setting.root, device="cpu")
    table = PaperTable("anomalib_check", (matrix,))
    folder = setting.out / "ours"
    with console.progress() as progress:
        configs = {method: setting.config(system)}
        (outcome,) = run(table, folder, configs=configs, options=options, progress=progress)
    if outcome.cell is None:
        raise BgadError(f"{system}: {outcome.reason}")
    rows = {row["name"]: row["score"] for row in json.loads((folder / outcome.file).read_bytes())["images"]}
    seconds = outcome.cell["seconds"]
    times = {"fit": seconds["features"] + seconds["train"], "score": seconds["score"]}
    return {"scores": [rows[sample.name] for sample in setting.split.test], "seconds": times}


def theirs(system: str, setting: Setting) -> dict[str, Any]:
    """Return scores and seconds of anomalib's side, from its own environment."""
    config, work = setting.config(system), setting.out / "work"
    work.mkdir(parents=True, exist_ok=True)
    packaged = backbones.BACKBONES["lite0"]
    torch.save(backbones._packaged_state(packaged), work / "lite0.pt")
    on_pixels = config.backbone.name == PIXELS
    trained, tested = len(setting.split.train), len(setting.split.test)
    job = {
        "system": system,
        "settings": asdict(config.baseline) if config.baseline is not None else {},
        "picked": _picked(config),
        "steps": setting.steps(config),
        "train": list(range(trained)),
        "test": list(range(trained, trained + tested)),
        "mean": 0.0 if on_pixels else packaged.mean,
        "std": 1.0 if on_pixels else packaged.std,
        "pixels": str(_pixels(setting, config.backbone)),
        "weights": str(work / "lite0.pt"),
    }
    write_atomic(work / f"{system}.json", json.dumps(job).encode())
    result = work / f"{system}-scores.json"
    command = [str(anomalib_python()), str(SCRIPT), str(work / f"{system}.json"), str(result)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise BgadError(f"anomalib's {system} failed: {lines[-1]}")
    found: dict[str, Any] = json.loads(result.read_bytes())
    return found


def _picked(config: Config) -> list[int]:
    """Return the channels that our PaDiM draws; none of another system."""
    if config.method != "padim":
        return []
    head: Any = new_model(config, backbones.build(config.backbone)).head
    return list(map(int, head.picked))


def _pixels(setting: Setting, backbone: BackboneConfig) -> Path:
    """Return the file of the images, those of training first, as our backbone takes them; it is written once."""
    samples = [*setting.split.train, *setting.split.test]
    key = sha256_json([[setting.split.hashes[sample.name] for sample in samples], backbone.size, backbone.crop])
    path = setting.out / "work" / f"pixels-{key[:12]}.npy"
    if not path.exists():
        images = ImageCache(backbone.size, crop=backbone.crop)
        validate_images(setting.dataset, MAX_UNREADABLE, images, None)
        draft = path.with_suffix(".draft.npy")
        stored = np.lib.format.open_memmap(
            draft, mode="w+", dtype=np.float32, shape=(len(samples), backbone.size, backbone.size, 3)
        )
        for i, sample in enumerate(samples):
            stored[i] = images.read(sample)
        stored.flush()
        draft.replace(path)
    return path


def measured(system: str, side: str, setting: Setting) -> dict[str, Any]:
    """Return what one side gives, from its file where that is of the same setting."""
    path, key = setting.out / f"{system}-{side}.json", setting.key(system, side)
    stored = read_stored(path, key)
    if stored is not None:
        return stored
    print(f"{system}, {side}: running", flush=True)
    found = (ours if side == OURS else theirs)(system, setting)
    auroc = metrics.auroc(found["scores"], [sample.label for sample in setting.split.test])
    stored = {"key": key, "image_auroc": auroc, "steps": setting.steps(setting.config(system)), **found}
    write_atomic(path, json.dumps(stored).encode())
    return stored


def page(results: Mapping[str, Mapping[str, Mapping[str, Any]]], setting: Setting) -> str:
    """Return the table as Markdown; a side that failed has its reason in place of figures."""
    split = setting.split
    lines = [
        f"# Baselines of bgad and of {ANOMALIB}: {setting.category}",
        "",
        f"Image AUROC on {len(split.test)} test images after {len(split.train)} training normals, Lite0, seed {SEED}. "
        f"Seconds: features, fit and the scores of all test images. {machine()}, torch {torch.__version__}.",
        "",
        "| system | our method | training | ours | anomalib | difference | ours, s | anomalib, s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    failures = []
    for system, sides in results.items():
        failures += [f"- {system}, {side}: {found['reason']}" for side, found in sides.items() if "reason" in found]
        left, right = (sides.get(side, {}).get("image_auroc") for side in SIDES)
        words = [_figure(left), _figure(right)]
        words.append("–" if left is None or right is None else f"{left - right:+.4f}")
        words += [_seconds(sides.get(side, {})) for side in SIDES]
        training = _training(system, setting)
        lines.append(f"| {system} | `{SYSTEMS[system].method}` | {training} | {' | '.join(words)} |")
    notes = [f"- {system}: {SYSTEMS[system].note}." for system in results]
    return "\n".join([*lines, "", "What differs beyond random draws:", "", *notes, *_failed(failures)]) + "\n"


def _failed(failures: Sequence[str]) -> list[str]:
    return ["", "Not measured:", "", *failures] if failures else []


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _seconds(found: Mapping[str, Any]) -> str:
    return f"{sum(found['seconds'].values()):.0f}" if "seconds" in found else "–"


def _training(system: str, setting: Setting) -> str:
    """Say how long both sides are trained."""
    config = setting.config(system)
    if not (steps := setting.steps(config)) or not isinstance(config.baseline, TrainedConfig):
        return "none"
    epochs = f" ({config.baseline.epochs} epochs)" if config.baseline.epochs else ""
    return f"{steps} steps of {config.baseline.images_per_step} images{epochs}"


def check(systems: Sequence[str], setting: Setting) -> dict[str, dict[str, dict[str, Any]]]:
    """Measure both sides of each system and write the table after each; a side that fails does not stop the others."""
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for system in systems:
        results[system] = {}
        for side in SIDES:
            try:
                results[system][side] = measured(system, side, setting)
            except BgadError as error:
                results[system][side] = {"reason": str(error)}
            write_atomic(setting.out / PAGE, page(results, setting).encode())
    return results


def main() -> None:
    """Measure the chosen systems and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.anomalib_check", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--systems", default=",".join(SYSTEMS), metavar="A,B", help=f"of {', '.join(SYSTEMS)} (default: all)"
    )
    parser.add_argument("--category", default="screw", help="of MVTec AD (default screw)")
    parser.add_argument("--steps", type=int, default=0, metavar="N", help="of CFA and STFPM (default: the recipe's)")
    parser.add_argument("--draem-epochs", type=int, default=5, metavar="N", help="of DRAEM (default 5; printed: 700)")
    parser.add_argument("--root", type=Path, metavar="DIR", help="folder of the data sets (default $BGAD_DATA)")
    parser.add_argument(
        "--out", type=Path, default=Path("bgad-anomalib"), metavar="DIR", help="default ./bgad-anomalib"
    )
    arguments = parser.parse_args()
    names = [name for name in arguments.systems.split(",") if name]
    if unknown := [name for name in names if name not in SYSTEMS]:
        parser.error(f"unknown system {unknown[0]}: choose from {', '.join(SYSTEMS)}")
    if not names or arguments.steps < 0 or arguments.draem_epochs < 1:
        parser.error("give one or more systems, --steps of 0 or more and --draem-epochs of 1 or more")
    tune_allocator()
    schedule = Schedule(arguments.steps, arguments.draem_epochs)
    try:
        check_folder(arguments.out)
        setting = prepare(arguments.category, arguments.root, arguments.out.absolute(), schedule)
        with locked(arguments.out, "check"):
            results = check(names, setting)
    except BgadError as error:
        parser.exit(2, f"{error}\n")
    except KeyboardInterrupt:
        parser.exit(130, "stopped: the same command continues\n")
    print((arguments.out / PAGE).read_text("utf-8"))
    if any("reason" in found for sides in results.values() for found in sides.values()):
        parser.exit(1)


if __name__ == "__main__":
    main()
