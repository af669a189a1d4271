"""Finds and reads a data set: a folder in the MVTec or the plain layout, a manifest, or a public set by its name."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from bgad.data.manifest import READERS, UNNAMED_DEFECT, read_manifest
from bgad.errors import DataError, abbreviate
from bgad.io import discover
from bgad.io.files import sha256_file
from bgad.types import GOOD, Sample, label_of

_LAYOUTS = (
    "expected train/good (with test/<class> and ground_truth/<class>/<name>_mask.png), "
    "or good/ and bad/ (with masks/), or a .csv or .jsonl manifest"
)


@dataclass(frozen=True)
class Dataset:
    """The samples of one data set, and notes on the files in it that are not used."""

    name: str
    root: Path
    samples: list[Sample]
    layout: Literal["mvtec", "plain", "manifest", "public"]
    notes: list[str] = field(default_factory=list)


def load(root: str | Path, *, need_normals: bool = True) -> Dataset:
    """Load the data set in a folder (MVTec or plain layout, recognised by its sub-folders) or in a manifest file.

    Training needs normals outside of the test set; evaluation does not.
    """
    root = Path(root)
    if root.is_file():
        samples, notes = read_manifest(root)
        dataset = Dataset(root.stem, root.parent, samples, "manifest", notes)
    elif root.is_dir():
        dataset = _read_folder(root)
    else:
        raise DataError(f"{root}: no such folder or manifest")
    appended = "".join(f"; {note}" for note in dataset.notes)
    if not dataset.samples:
        raise DataError(f"{root}: no images found; {_LAYOUTS}{appended}")
    if need_normals and not any(s.label == 0 and s.split != "test" for s in dataset.samples):
        raise DataError(f"{root}: no normal images to train on; {_LAYOUTS}{appended}")
    return dataset


def locate(data: str | Path, root: str | Path | None = None, *, need_normals: bool = True) -> Dataset:
    """Load the data at a path; if no such path exists, load NAME or NAME/CATEGORY of the registry below `root`."""
    from bgad.data.datasets import registry  # its readers use this module

    path = Path(data)
    name, category = _parts(path)
    if path.exists():
        try:
            return load(path, need_normals=need_normals)
        except DataError as error:
            if name not in registry.DATASETS:
                raise
            raise DataError(f"{error}; {path} is also the name of a data set: for that, run elsewhere") from error
    if not name:
        raise DataError(f"{path}: no such folder or manifest, and no name of a data set (`bgad datasets` lists them)")
    try:
        return registry.load(name, category, root)
    except DataError as error:
        raise DataError(f"{path}: no such folder or manifest; as the name of a data set: {error}") from error


def set_name(data: str | Path) -> str | None:
    """Return the name of the public data set that `locate` reads for `data`; None where it reads a path."""
    from bgad.data.datasets import registry

    name, _ = _parts(Path(data))
    return name if name in registry.DATASETS and not Path(data).exists() else None


def model_folder(data: str | Path) -> Path:
    """Return the default model folder of a training: in the current directory, named like the data.

    >>> model_folder("mvtec/screw").name, model_folder("gear.v1").name, model_folder("parts.csv").name
    ('screw.bgad', 'gear.v1.bgad', 'parts.bgad')
    """
    path = Path(data).resolve()
    return Path(f"{path.stem if path.suffix.lower() in READERS else path.name}.bgad")


def _parts(path: Path) -> tuple[str, str]:
    """Return name and category of a data set; two empty texts where the path can be neither."""
    name, *rest = path.parts or ("",)
    return (name, "".join(rest)) if len(rest) < 2 and not path.is_absolute() and name != ".." else ("", "")


def hash_file(path: Path, more: str = "") -> str:
    """Return what `sha256_file` does; DataError where the file cannot be read."""
    try:
        return sha256_file(path, more)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def is_category(folder: Path) -> bool:
    """Tell whether a folder has the MVTec layout: train/ with a sub-folder of normals."""
    return any(label_of(sub.name) == 0 for sub in subfolders(folder / "train"))


def subfolders(folder: Path) -> list[Path]:
    """Return the visible folders in a folder, natural-sorted; empty where the folder does not exist."""
    if not folder.is_dir():
        return []
    try:
        paths = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed: {error.strerror}") from error
    return sorted(paths, key=discover.natural_key)


def read_mvtec(root: Path) -> Dataset:
    """Read one category in the MVTec layout: train/<class>, test/<class> and ground_truth/<class>."""
    samples: list[Sample] = []
    outside: list[str] = []
    unsupported: Counter[str] = Counter()
    for split in ("train", "test"):
        for path in discover.walk(root / split, unsupported) if (root / split).is_dir() else ():
            name = path.relative_to(root)
            if len(name.parts) < 3:
                outside.append(name.as_posix())
                continue
            normal = label_of(name.parts[1]) == 0
            defect = GOOD if normal else name.parts[1]
            samples.append(Sample(path, name.as_posix(), int(not normal), defect, split=split))
    # test/crack/007.png -> ground_truth/crack/007
    mask_stems = {s.name: [Path(*Path(s.name).parts[1:]).with_suffix("").as_posix()] for s in samples}
    samples, notes = _attach_masks(samples, root / "ground_truth", mask_stems, unsupported)
    if outside:
        notes.append(f"not used, outside of a class folder: {abbreviate(outside)}")
    return Dataset(root.resolve().name, root, samples, "mvtec", notes)


def _read_folder(root: Path) -> Dataset:
    folders = subfolders(root)
    if is_category(root):
        _refuse_unused(root, [folder for folder in folders if label_of(folder.name) is not None], "train/NAME/")
        return read_mvtec(root)
    if any(label_of(folder.name) == 0 for folder in folders):
        return _read_plain(root, folders)
    categories = [folder.name for folder in folders if is_category(folder)]
    if categories:
        raise DataError(f"{root}: holds data sets in its folders; give one of them: {abbreviate(categories, 20)}")
    content = abbreviate([f"{folder.name}/" for folder in folders], 8) if folders else "no folders"
    raise DataError(f"{root}: {_LAYOUTS}; found {content}")


def _read_plain(root: Path, folders: list[Path]) -> Dataset:
    """Read the plain layout: good/, bad/ (perhaps with a folder for each defect class) and masks/."""
    samples: list[Sample] = []
    unused: list[Path] = []
    unsupported: Counter[str] = Counter()
    mask_stems: dict[str, list[str]] = {}
    for folder in folders:
        label = label_of(folder.name)
        if label is None:
            unused += [folder] if folder.name.lower() != "masks" else []
            continue
        for path in discover.walk(folder, unsupported):
            name, inner = path.relative_to(root), path.relative_to(folder)
            defect = GOOD if label == 0 else inner.parts[0] if len(inner.parts) > 1 else UNNAMED_DEFECT
            samples.append(Sample(path, name.as_posix(), label, defect))
            # masks/bad/crack/7, masks/crack/7 or masks/7; for a normal only masks/good/7, as stems may repeat
            candidates = [name] if label == 0 else [name, inner, Path(path.name)]
            mask_stems[name.as_posix()] = [candidate.with_suffix("").as_posix() for candidate in candidates]
    masks = next((folder for folder in folders if folder.name.lower() == "masks"), root / "masks")
    samples, notes = _attach_masks(samples, masks, mask_stems, unsupported)
    _refuse_unused(root, unused, "good/, bad/ or masks/")
    if unused:
        notes.append(f"folders not used: {abbreviate(f'{folder.name}/' for folder in unused)}")
    return Dataset(root.resolve().name, root, samples, "plain", notes)


def _refuse_unused(root: Path, folders: list[Path], use: str) -> None:
    """Raise for a folder with images that would not be used, as its name may be a label that is not known here."""
    for folder in folders:
        if folder.name.startswith("_") or folder.suffix == ".bgad" or not discover.walk(folder):
            continue
        name = folder.name
        raise DataError(
            f"{root}: {name}/ holds images that would not be used: rename it to {use.replace('NAME', name)} to use "
            f"them, or to _{name}/ to leave them out"
        )


def _attach_masks(
    samples: list[Sample], folder: Path, mask_stems: dict[str, list[str]], unsupported: Counter[str]
) -> tuple[list[Sample], list[str]]:
    """Attach masks to anomalies, and return notes on what is left over.

    The mask of a sample is the first of its `mask_stems` that exists in `folder`, with or without the suffix `_mask`.
    """
    masks: dict[str, list[Path]] = {}
    for path in discover.walk(folder, unsupported) if folder.is_dir() else ():
        masks.setdefault(path.relative_to(folder).with_suffix("").as_posix(), []).append(path)

    def mask_of(sample: Sample) -> Path | None:
        stems = [f"{stem}{suffix}" for stem in mask_stems[sample.name] for suffix in ("_mask", "")]
        return next((masks[stem][0] for stem in stems if stem in masks), None)

    owners: dict[Path, Sample] = {}
    masked: list[Sample] = []
    for sample in samples:
        mask = mask_of(sample) if sample.label else None
        if mask and mask in owners:
            both = f"{owners[mask].name} and {sample.name}"
            raise DataError(f"{mask}: is the mask of both {both}; rename one of them and give it its own mask")
        if mask:
            owners[mask] = sample
        masked.append(replace(sample, mask=mask))
    used = {*owners, *(mask_of(sample) for sample in samples if not sample.label)}
    orphans = [
        path.relative_to(folder.parent).as_posix() for paths in masks.values() for path in paths if path not in used
    ]
    unmasked = [sample.name for sample in masked if sample.label and not sample.mask]
    notes = [f"not used: {discover.describe_unsupported(unsupported)}"] if unsupported else []
    notes += [f"mask without an image: {abbreviate(orphans)}"] if orphans else []
    notes += [f"anomaly without a mask: {abbreviate(unmasked)}"] if unmasked and owners else []
    return masked, notes
