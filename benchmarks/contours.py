"""What is drawn on anomaly maps: how many good images show a contour, and how much of the defects is inside one.

On the models and data that `bgad demo` has written: the contour at the paper's normal boundary against the one at the
map threshold, on the test images and on freshly drawn good images.

    bgad demo
    python -m benchmarks.contours bgad-demo
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import cc3d
import numpy as np

import bgad
from bgad.data import layouts
from bgad.data.sample_io import read_mask
from bgad.data.synthetic.demo import draw
from bgad.evaluation.evaluate import select_samples
from bgad.inference.base import BaseScorer
from bgad.inference.batch import CONTOURS, map_legend
from bgad.types import GOOD, BoolArray, FloatArray

SIZE, SEED = 256, 1  # of the fresh images; the demo itself has seed 0


class Counts(NamedTuple):
    """What one contour shows."""

    good: int  # test normals with any contour
    fresh: int  # fresh normals with any contour
    images: int  # anomalous images with any contour
    defects: int  # connected defects that a contour reaches
    area: float  # share of the defects' pixels inside a contour
    inside: float  # share of the pixels inside contours that belong to a defect


def count(
    contour: float,
    good: Sequence[FloatArray],
    fresh: Sequence[FloatArray],
    marked: Sequence[tuple[FloatArray, BoolArray]],
) -> Counts:
    """Measure the contour at one map value; `marked` are the maps of anomalies with their masks."""
    images = defects = hit = drawn = area = 0
    for anomaly_map, mask in marked:
        above = anomaly_map > contour
        regions = cc3d.connected_components(mask.astype(np.uint8), connectivity=8)
        images += bool(above.any())
        defects += len(set(np.unique(regions[above]).tolist()) - {0})
        hit, drawn, area = hit + int((above & mask).sum()), drawn + int(above.sum()), area + int(mask.sum())
    with_contour, fresh_with_contour = (sum(bool(m.max() > contour) for m in maps) for maps in (good, fresh))
    return Counts(with_contour, fresh_with_contour, images, defects, hit / max(1, area), hit / max(1, drawn))


def measure(scorer: BaseScorer, folder: Path, fresh: int) -> None:
    """Print a line of the table for each contour."""
    samples, _ = select_samples(scorer.card, layouts.load(folder))
    maps = [result.map for result in scorer.score_many([s.path for s in samples])]
    good = [m for m, s in zip(maps, samples, strict=True) if not s.label]
    masks = [(m, read_mask(s)) for m, s in zip(maps, samples, strict=True) if s.label]
    marked = [(m, mask) for m, mask in masks if mask is not None]
    total = sum(int(cc3d.connected_components(mask.astype(np.uint8), connectivity=8).max()) for _, mask in marked)
    drawings = (draw(folder.name, GOOD, np.random.default_rng([SEED, i]), SIZE)[0] for i in range(fresh))
    new = [result.map for result in scorer.score_stream(drawings) if isinstance(result, bgad.Scores)]
    for name in CONTOURS[::-1]:
        legend = map_legend(scorer, name)
        c = count(legend.contour, good, new, marked)
        print(
            f"| {folder.name} | {legend.name}, {legend.contour:.2f} | {c.good} of {len(good)} "
            f"| {c.fresh} of {len(new)} | {c.images} of {len(marked)} | {c.defects} of {total} | {c.area:.0%} "
            f"| {c.inside:.0%} |"
        )


def main() -> None:
    """Run as `python -m benchmarks.contours FOLDER`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("demo", type=Path, help="what `bgad demo` has written")
    parser.add_argument("--fresh", type=int, default=200, help="good images to draw in addition (default 200)")
    arguments = parser.parse_args()
    print("| category | contour at | good | fresh good | anomalous | defects | area of defects | drawn on a defect |")
    for model in sorted(arguments.demo.glob("*.bgad")):
        scorer = bgad.load(model, "cpu")
        print(f"{model.name}: {scorer.calibration.guarantee()}")
        measure(scorer, arguments.demo / "data" / model.stem, arguments.fresh)


if __name__ == "__main__":
    main()
