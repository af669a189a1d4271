"""Teaching against training anew: does an update learn a new defect class, forget nothing and save time?

On MVTec AD's screw (or another set with classes): a model that knows ten anomalies of three classes is taught ten of a
fourth. Then image AUROC on the rest of the new class and on the three, before, after, and for a model trained anew on
all of it; and the time of both.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks import machine, record
from bgad import metrics
from bgad.config import Config
from bgad.data import layouts
from bgad.data import sample_io as samples
from bgad.data.datasets import registry
from bgad.data.layouts import Dataset, hash_file
from bgad.data.split import Split, holdout_size, make_split
from bgad.inference.torch_engine import Detector
from bgad.io import images
from bgad.model.device import tune_allocator
from bgad.training.pipeline import TrainOptions, train
from bgad.training.update import NewImage, UpdateOptions, update
from bgad.types import Sample

KNOWN, CLASSES = 10, 3


def without(dataset: Dataset, left_out: set[str], seed: int) -> Split:
    """A split of the data set in which these images have no role; ten anomalies of the others are known."""
    some = replace(dataset, samples=[s for s in dataset.samples if s.name not in left_out])
    normals = sum(s.label == 0 and s.split != "test" for s in some.samples)
    return make_split(some, holdout=holdout_size(normals), seed=seed, known=KNOWN)


def aurocs(detector: Detector, normals: list[Sample], groups: dict[str, list[Sample]]) -> dict[str, float]:
    """Image AUROC of each group of anomalies against the normals."""
    everyone = [*normals, *(s for group in groups.values() for s in group)]
    found = dict(zip((s.name for s in everyone), detector.score_many([s.path for s in everyone]), strict=True))
    result = {}
    for title, group in groups.items():
        chosen = [*normals, *group]
        result[title] = metrics.auroc([found[s.name].score for s in chosen], [s.label for s in chosen]) or 0.0
    return result


def cut(dataset: Dataset, folder: Path) -> Dataset:
    """The same with a file for each tile, as teaching takes files. Of the strips without a defect, a quarter is for the
    test."""
    for number, sample in enumerate(dataset.samples):
        aside = sample.label or int(hash_file(sample.path), 16) % 4 == 0
        place = folder / ("test" if aside else "train") / sample.defect / f"{number:05d}.png"
        mask = samples.read_mask(sample)
        pictures = {place: images.to_uint8(samples.read(sample))}
        if mask is not None:
            pictures[folder / "ground_truth" / sample.defect / place.name] = mask.astype(np.uint8) * 255
        for path, pixels in pictures.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    return layouts.load(folder)


def one(dataset: Dataset, known: list[str], new_class: str, seed: int, work: Path) -> None:
    """Measure one new class."""
    of_class = sorted((s for s in dataset.samples if s.defect == new_class), key=lambda s: s.name)
    taught, left = of_class[:KNOWN], of_class[KNOWN:]
    others = known or sorted({s.defect for s in dataset.samples if s.label} - {new_class})[:CLASSES]
    split = without(dataset, {s.name for s in dataset.samples if s.label and s.defect not in others}, seed)
    (work / "split.json").write_bytes(split.to_bytes())
    config = Config(seed=seed)
    began = time.perf_counter()
    first = train(
        dataset.root, work / "first.bgad", config=config, options=TrainOptions(split=work / "split.json", device="cpu")
    )
    first_seconds = time.perf_counter() - began
    normals = [s for s in split.test if not s.label]
    groups = {"new class": left, "known classes": [s for s in split.test if s.label]}
    before = aurocs(first, normals, groups)
    began = time.perf_counter()
    new = [NewImage(s.path, 1, s.mask) for s in taught]
    second = update(
        work / "first.bgad", new, work / "second.bgad", options=UpdateOptions(data=dataset.root, device="cpu")
    )
    seconds = time.perf_counter() - began
    after = aurocs(second, normals, groups)
    everything = replace(
        split,
        known=[*split.known, *taught],
        hashes=split.hashes | {s.name: hash_file(s.path) for s in taught},
        protocol="given",
    )
    (work / "all.json").write_bytes(everything.to_bytes())
    began = time.perf_counter()
    third = train(
        dataset.root, work / "third.bgad", config=config, options=TrainOptions(split=work / "all.json", device="cpu")
    )
    anew_seconds = time.perf_counter() - began
    anew = aurocs(third, normals, groups)
    for title in groups:
        print(
            f"{dataset.name}, {new_class} taught, {title} ({len(groups[title])} images): before {before[title]:.4f}, "
            f"after {after[title]:.4f}, trained anew {anew[title]:.4f}",
            flush=True,
        )
    print(f"first training {first_seconds:.0f} s")
    record(f"teaching {KNOWN} of {new_class} to {dataset.name}, against training anew", seconds, anew_seconds, "s")


def main() -> None:
    """Measure, print, append."""
    tune_allocator()  # as the commands do, for both sides
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--root", type=Path, help="where the data sets are (default: BGAD_DATA)")
    parser.add_argument("--data", default="mvtec", help="a set of the catalog")
    parser.add_argument("--category", help="of the set (mvtec: screw)")
    parser.add_argument("--classes", nargs="+", default=[], help="that are known before (the first three others)")
    parser.add_argument("--new", nargs="+", default=["thread_side"], help="classes to teach, each by itself")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(machine())
    category = arguments.category or ("screw" if arguments.data == "mvtec" else "")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        dataset = registry.load(arguments.data, category, arguments.root)
        if any(sample.box for sample in dataset.samples):
            dataset = cut(dataset, work / arguments.data)
        for new_class in arguments.new:
            known = [kind for kind in arguments.classes if kind != new_class]
            place = work / new_class
            place.mkdir()
            one(dataset, known, new_class, arguments.seed, place)


if __name__ == "__main__":
    main()
