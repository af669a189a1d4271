"""Draws the paper's figures with matplotlib and writes each as a vector and as a bitmap file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from bgad.benchmark.figures import KNOWN, NORMAL, SEEN, UNSEEN, FigureData, MethodResult, qualitative_samples
from bgad.errors import ConfigError
from bgad.evaluation.measure import level_values
from bgad.io import render
from bgad.metrics import METRICS
from bgad.pseudo.contact_sheet import contact_sheet
from bgad.pseudo.rpag import fit_mask
from bgad.training.training_set import PseudoSeries
from bgad.types import FloatArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {  # readable with the common kinds of colour blindness
    NORMAL: "#4477aa",
    KNOWN: "#ee6677",
    SEEN: "#ccbb44",
    UNSEEN: "#aa3377",
}
GROUND_TRUTH = (230, 20, 30)
RPAG_SAMPLES = 24
TSNE_SEED = 0
BITMAP_DPI = 150
TAIL = 2.0  # length of a histogram beyond the boundary, as a multiple of that within it
FULL_HEAT = 3.0  # distance beyond the boundary with 95 % of the heat, as a multiple of that from normals to it


def require_libraries() -> None:
    """ConfigError where matplotlib or scikit-learn is not installed."""
    try:
        import matplotlib as mpl
        import sklearn  # noqa: F401
    except ImportError as error:
        raise ConfigError("figures need matplotlib and scikit-learn: pip install 'bgad[figures]'") from error
    mpl.use("Agg")


def save(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as SVG and PNG under a name without suffix; return the files."""
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_name(f"{path.name}{suffix}") for suffix in (".svg", ".png")]
    for file in files:
        figure.savefig(file, dpi=BITMAP_DPI, bbox_inches="tight")
    plt.close(figure)
    return files


def draw(name: str, data: FigureData, folder: Path) -> list[Path]:
    """Draw a figure by its name; return its files."""
    path = folder / f"{data.name}-{name}"
    if name == "rpag":
        return _rpag(data, path)
    drawings = {"histogram": _histogram, "qualitative": _qualitative, "tsne": _tsne, "curve": _curve}
    return save(drawings[name](data), path)


def _axes(rows: int, columns: int, width: float, height: float) -> tuple[Figure, Any]:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(rows, columns, figsize=(width * columns, height * rows), squeeze=False)
    return figure, axes


def _histogram(data: FigureData) -> Figure:
    """Log-likelihoods of each level, one row a method: without anomalies on the left, with them on the right."""
    levels = len(data.results[0].level_boundaries)
    figure, axes = _axes(len(data.results), 2 * levels, 2.7, 2.1)
    for row, result in zip(axes, data.results, strict=True):
        for level in range(levels):
            log_p = [output.levels[level] for output in result.outputs]
            normal, anomalous = level_values(data.split.test, log_p, data.masks)
            bins = histogram_bins(np.concatenate([normal, anomalous]), result.level_boundaries[level])
            for k, groups in enumerate(({NORMAL: normal}, {NORMAL: normal, KNOWN: anomalous})):
                axis = row[2 * level + k]
                for name, values in groups.items():
                    label = "anomalous" if name != NORMAL else NORMAL
                    shown = np.maximum(values, bins[0])
                    axis.hist(shown, bins, density=True, alpha=0.6, color=COLOURS[name], label=label)
                axis.axvline(result.level_boundaries[level], color="black", linewidth=0.8, linestyle="--")
                axis.set_yticks([])
                axis.tick_params(labelsize=7)
                kind = "with anomalies" if k else "normals"
                axis.set_title(f"{result.method}, level {level + 1}, {kind}", fontsize=7)
        row[-1].legend(fontsize=7, frameon=False)
    figure.supxlabel("log p / d; dashed: normal boundary; the first bar holds what lies further left", fontsize=8)
    figure.tight_layout()
    return figure


def histogram_bins(values: FloatArray, boundary: float) -> FloatArray:
    """Return the edges of the bars, which begin where the normals are still wide enough to be seen.

    A push moves single features so far that an axis for all of them would show nothing else.
    """
    low, high = np.quantile(values, [0.002, 1.0])
    return np.linspace(max(low, boundary - TAIL * abs(high - boundary)), high, 70)


def _qualitative(data: FigureData) -> Figure:
    """Images with outlined ground truth in the first row, then the anomaly maps of each method."""
    chosen = qualitative_samples(data)
    # of the images shown, since one far outlier among all would take the heat from the others
    peaks = [float(np.median([result.outputs[i].map.max() for i in chosen])) for result in data.results]
    figure, axes = _axes(1 + len(data.results), len(chosen), 1.7, 1.7)
    for column, number in enumerate(chosen):
        sample, mask = data.split.test[number], data.masks[number]
        image = data.images.read(sample)
        pixels = (image * 255).round().astype(np.uint8)
        if mask is not None:
            pixels_outlined = render.outline(pixels, fit_mask(mask, data.images.size), GROUND_TRUTH)
            axes[0][column].imshow(pixels_outlined)
        axes[0][column].set_title(sample.defect, fontsize=7)
        for row, result in enumerate(data.results, start=1):
            anomaly_map = _stretched(result.outputs[number].map, result, peaks[row - 1])
            axes[row][column].imshow(render.overlay(pixels, anomaly_map, result.boundary, result.low))
    for row, name in enumerate(("ground truth", *(result.method for result in data.results))):
        axes[row][0].set_ylabel(name, fontsize=8)
    for axis in axes.ravel():
        axis.set_xticks([])
        axis.set_yticks([])
    figure.tight_layout()
    return figure


def _stretched(anomaly_map: FloatArray, result: MethodResult, peak: float) -> FloatArray:
    """Stretch or compress a map beyond its boundary so that a value of `peak` has nearly full heat.

    Maps of the paper's methods are bounded and end just beyond their boundary; those of the default reach far beyond.
    """
    unit = result.boundary - result.low
    factor = FULL_HEAT * unit / max(peak - result.boundary, 1e-6)
    beyond = np.maximum(anomaly_map - result.boundary, 0)
    stretched: FloatArray = np.minimum(anomaly_map, result.boundary) + factor * beyond
    return stretched


def _tsne(data: FigureData) -> Figure:
    """t-SNE of features, of latents before phase 2 and after it; one row a method."""
    from sklearn.manifold import TSNE

    figure, axes = _axes(len(data.results), 3, 3.2, 3.0)
    titles = ("features of the backbone", "latents before phase 2", "latents after phase 2")
    for row, result in zip(axes, data.results, strict=True):
        spaces = zip(*((group.features, group.before, group.after) for group in result.groups), strict=True)
        names = np.repeat([group.name for group in result.groups], [len(group.features) for group in result.groups])
        for axis, title, space in zip(row, titles, spaces, strict=True):
            points = np.concatenate(space)
            scaled = (points - points.mean(0)) / (points.std(0) + 1e-6)
            perplexity = min(30.0, (len(points) - 1) / 3)
            embedded = TSNE(perplexity=perplexity, random_state=TSNE_SEED, init="pca").fit_transform(scaled)
            for name in dict.fromkeys(names):
                axis.scatter(*embedded[names == name].T, s=4, alpha=0.7, linewidths=0, color=COLOURS[name], label=name)
            axis.set_title(f"{result.method}: {title}", fontsize=8)
            axis.set_xticks([])
            axis.set_yticks([])
    axes[0][-1].legend(fontsize=7, frameon=False, markerscale=3, loc="upper left", bbox_to_anchor=(1, 1))
    figure.tight_layout()
    return figure


def _curve(data: FigureData) -> Figure:
    """AUROC on the test images against the epoch or the step; the end of phase 1 is a dotted line."""
    unit = "epoch" if data.config.train.epochs else "step"
    measured = ("image_auroc", "pixel_auroc")
    shown = [m for m in measured if any(getattr(point, m) is not None for r in data.results for point in r.curve)]
    figure, axes = _axes(1, len(shown), 4.2, 3.0)
    for axis, metric in zip(axes[0], shown, strict=True):
        for result in data.results:
            axis.plot(
                [getattr(point, unit) for point in result.curve],
                [getattr(point, metric) for point in result.curve],
                marker="o",
                markersize=3,
                label=result.method,
            )
        for start in {_phase_two(result, unit) for result in data.results}:
            axis.axvline(start, color="grey", linestyle=":", linewidth=1)
        axis.set_xlabel(f"{unit} (dotted: phase 2 begins)", fontsize=8)
        axis.set_title(METRICS[metric].title, fontsize=9)
        axis.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    return figure


def _phase_two(result: MethodResult, unit: str) -> float:
    return max((float(getattr(point, unit)) for point in result.curve if point.phase == 1), default=0.0)


def _rpag(data: FigureData, path: Path) -> list[Path]:
    """Write a sheet of the pseudo anomalies that the paper's generator makes of the known anomalies."""
    split, config = data.split, data.config
    known = [s for s in split.known if (mask := data.images.read_mask(s)) is not None and mask.any()]
    series = PseudoSeries(split.train, known, data.images, replace(config.pseudo, method="rpag"), config.seed)
    sheet = contact_sheet(series.make(i) for i in range(RPAG_SAMPLES))
    figure, axes = _axes(1, 1, sheet.shape[1] / 100, sheet.shape[0] / 100)
    axes[0][0].imshow(sheet)
    axes[0][0].axis("off")
    return save(figure, path)


def bars(cells: Sequence[Mapping[str, Any]], printed: Mapping[str, Mapping[str, float]], path: Path) -> list[Path]:
    """Draw image AUROC of each data set and method as bars, with printed figures (name -> data set -> value) beside."""
    values_of: dict[str, dict[str, list[float]]] = {}
    for cell in cells:
        if (value := cell["metrics"].get("image_auroc")) is not None:
            values_of.setdefault(cell["method"], {}).setdefault(cell["data"], []).append(value)
    columns = {name: {data: fmean(values) for data, values in sets.items()} for name, sets in values_of.items()}
    data_sets = list(dict.fromkeys(data for sets in columns.values() for data in sets))
    columns |= {name: dict(values) for name, values in printed.items()}
    figure, axes = _axes(1, 1, 1.8 + 1.6 * len(data_sets), 3.2)
    axis, width = axes[0][0], 0.8 / max(1, len(columns))
    for k, (name, values) in enumerate(columns.items()):
        at = [i + k * width for i, data in enumerate(data_sets) if data in values]
        axis.bar(at, [values[data] for data in data_sets if data in values], width, label=name)
    axis.set_xticks([i + 0.4 - width / 2 for i in range(len(data_sets))], data_sets)
    axis.set_ylabel("image AUROC")
    axis.set_ylim(0.4, 1.0)
    axis.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return save(figure, path)
