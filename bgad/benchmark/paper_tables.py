"""The tables of the paper as data: what each of them runs. TABLES is the list that `bgad benchmark --paper` offers.

Categories and classes are named like their folders on disk.
"""

from __future__ import annotations

from dataclasses import dataclass

from bgad.data.cross_validation import FOLDS

IMAGE, PIXEL, PRO = "image_auroc", "pixel_auroc", "pro"


@dataclass(frozen=True)
class Column:
    """One column of a table: a method with changes to the recipe, written as for --set."""

    title: str
    method: str = "bgad"
    changes: tuple[str, ...] = ()
    known: int | None = None  # number of known anomalies, instead of the numbers of the matrix
    curve: bool = False  # also measure a learning curve during training


@dataclass(frozen=True)
class Matrix:
    """The runs of one table: categories x cases of the protocol x columns x numbers of known anomalies x seeds."""

    data: dict[str, tuple[str, ...]]  # data set or folder -> categories; empty: all
    protocol: str
    columns: tuple[Column, ...]
    known: tuple[int, ...] = (10,)
    seeds: int = 3
    metrics: tuple[str, ...] = (IMAGE, PIXEL, PRO)
    title: str = ""
    folds: int = FOLDS  # of a cross-validation; its numbers of known anomalies are those that take part, 0: all


@dataclass(frozen=True)
class PaperTable:
    """What one command runs: matrices, and whether the paper prints only their means, one row for each column."""

    about: str
    matrices: tuple[Matrix, ...]
    means: bool = False
    notes: tuple[str, ...] = ()

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods of all columns."""
        return tuple(dict.fromkeys(column.method for matrix in self.matrices for column in matrix.columns))


def methods(*names: str) -> tuple[Column, ...]:
    """Return a column for each method, without changes to the recipe."""
    return tuple(Column(name, name) for name in names)


MVTEC: dict[str, tuple[str, ...]] = {"mvtec": ()}
_ONE_CLASS_CATEGORIES = (
    *("carpet", "metal_nut", "capsule", "screw", "transistor"),
    *("bottle", "hazelnut", "grid", "tile", "wood"),
)
_NO_RPAG, _RPAG = "pseudo.method=none", "pseudo.method=rpag"
_NO_AW, _AW = "loss.asymmetric_weights=false", "loss.asymmetric_weights=true"

TABLES: dict[str, PaperTable] = {
    "main": PaperTable(
        "MVTec AD, multi-class, 10 known: nfad, bgad-wo and bgad on all categories",
        (Matrix(MVTEC, "multi-class", methods("nfad", "bgad-wo", "bgad")),),
    ),
    "supervised": PaperTable(
        "MVTec AD, multi-class, 10 known: bgad beside other supervised methods",
        (Matrix(MVTEC, "multi-class", methods("bgad")),),
    ),
    "btad": PaperTable("BTAD, multi-class, 10 known", (Matrix({"btad": ()}, "multi-class", methods("nfad", "bgad")),)),
    "other": PaperTable(
        "AITEX, ELPV, BrainMRI and HeadCT with 1 known anomaly (a plot in the paper)",
        (
            Matrix(
                {"aitex": (), "elpv": (), "brainmri": (), "headct": ()},
                "general",
                methods("nfad", "bgad"),
                known=(1,),
                metrics=(IMAGE,),
            ),
        ),
        notes=("The paper shows these results as a plot and prints no numbers.",),
    ),
    "one-class": PaperTable(
        "one-class, 10 known of one class, tested on the others (both of the paper's tables)",
        (
            Matrix(
                {"mvtec": _ONE_CLASS_CATEGORIES, "aitex": (), "elpv": ()},
                "one-class",
                methods("nfad", "bgad"),
                metrics=(IMAGE, PIXEL),
            ),
        ),
    ),
    "subsets": PaperTable(
        "MVTec AD: all classes, its hard subsets, and its hard subsets with known anomalies of the easy classes only",
        tuple(
            Matrix(MVTEC, protocol, methods("nfad", "bgad"), title=title)
            for protocol, title in (
                ("multi-class", "MVTec AD"),
                ("hard", "hard subsets"),
                ("unseen", "unseen subsets"),
            )
        ),
        means=True,
    ),
    "semi-push-pull": PaperTable(
        "one-class: semi-push-pull against full push and pull (both of the paper's tables)",
        (
            Matrix(
                {"mvtec": _ONE_CLASS_CATEGORIES},
                "one-class",
                methods("nfad", "bgad-full-push", "bgad"),
                metrics=(IMAGE, PIXEL),
            ),
        ),
    ),
    "ablation": PaperTable(
        "MVTec AD: 0, 5 and 10 known anomalies, with and without RPAG and asymmetric weights (AW)",
        (
            Matrix(
                MVTEC,
                "multi-class",
                (
                    Column("0 known", "nfad"),
                    Column("5 known", changes=(_NO_RPAG, _NO_AW), known=5),
                    Column("5 known, RPAG", changes=(_RPAG, _NO_AW), known=5),
                    Column("10 known", changes=(_NO_RPAG, _NO_AW)),
                    Column("10 known, RPAG", changes=(_RPAG, _NO_AW)),
                    Column("10 known, RPAG, AW", changes=(_RPAG, _AW)),
                ),
            ),
        ),
        means=True,
        notes=("0 known: nfad, which uses no anomaly, on the test images that remain after 10 known ones are drawn.",),
    ),
    "pseudo": PaperTable(
        "MVTec AD: pseudo anomalies as DRAEM, NSA and RPAG make them",
        (
            Matrix(
                MVTEC,
                "multi-class",
                # not titled DRAEM: that is also a method of its own, with printed figures
                tuple(Column(f"pseudo {n}", changes=(f"pseudo.method={n}", _NO_AW)) for n in ("draem", "nsa", "rpag")),
            ),
        ),
        means=True,
        notes=("Pseudo anomalies are added to the 10 known anomalies; no asymmetric weights.",),
    ),
    "lambda": PaperTable(
        "MVTec AD, hard subsets: the weight of the semi-push-pull loss",
        (
            Matrix(
                MVTEC,
                "hard",
                tuple(Column(f"lambda {value}", changes=(f"loss.push_pull_weight={value}",)) for value in (1, 5, 10)),
            ),
        ),
        means=True,
    ),
    "beta-tau": PaperTable(
        "MVTec AD: the share of normals outside the boundary (beta) and the margin (tau)",
        (
            Matrix(
                MVTEC,
                "multi-class",
                tuple(
                    Column(f"beta {beta:.0%}, tau {tau}", changes=(f"loss.beta={beta}", f"loss.tau={tau}"))
                    for beta in (0.01, 0.05, 0.1)
                    for tau in (0.1, 0.2, 0.3)
                ),
            ),
        ),
        means=True,
    ),
    "efficiency": PaperTable(
        "pixel AUROC on the test images against the step (in the paper: MVTec AD, cable), a plot in benchmark.html",
        (
            Matrix(
                {"mvtec": ("cable",)},
                "multi-class",
                tuple(Column(name, name, curve=True) for name in ("nfad", "bgad")),
                seeds=1,
            ),
        ),
        notes=("No model is chosen by the curve. The paper shows it as a plot and prints no numbers.",),
    ),
}
