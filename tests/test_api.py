"""What other people's code stands on: names, fields and signatures that do not change by accident."""

from __future__ import annotations

import dataclasses
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bgad
from bgad import Sample, Scorer, Scores


def test_public_names() -> None:
    assert sorted(bgad.__all__) == [
        "BgadError", "Sample", "Scorer", "Scores", "TrainOptions", "__version__", "load", "train",
    ]  # fmt: skip
    for name in bgad.__all__:
        assert getattr(bgad, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'tarin'"):
        bgad.tarin  # noqa: B018


def test_fields_of_what_comes_out_and_goes_in() -> None:
    assert [field.name for field in dataclasses.fields(Scores)] == [
        "score", "p_value", "threshold", "is_anomaly", "map", "map_threshold", "boundary", "levels", "parts", "reason",
        "region", "precision",
    ]  # fmt: skip
    assert [field.name for field in dataclasses.fields(Sample)] == [
        "path", "name", "label", "defect", "mask", "split", "box", "more_masks", "roi", "ignore",
    ]  # fmt: skip
    sample = Sample(Path("a.png"), "a.png", 0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        sample.label = 1  # type: ignore[misc]


def test_signatures() -> None:
    assert list(inspect.signature(bgad.load).parameters) == [
        "folder", "device", "engine", "precision", "threads", "batch", "strict",
    ]  # fmt: skip
    assert list(inspect.signature(bgad.train).parameters) == [
        "data", "out", "config", "options", "progress", "stop",
    ]  # fmt: skip
    assert list(inspect.signature(bgad.TrainOptions).parameters) == [
        "root", "known", "test_share", "split", "false_reject_rate", "confidence", "device", "memory_gb",
        "max_unreadable", "resume", "overwrite", "tensorboard", "export", "roi",
    ]  # fmt: skip


def test_a_misspelt_option_is_an_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'konwn'"):
        bgad.TrainOptions(konwn=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_unreadable": -1}, "max_unreadable must be 0 or more"),
        ({"test_share": 1.0}, "test_share 0 or more and below 1"),
        ({"split": "split.json", "known": 0}, "leave out --known and --test"),
        ({"split": "split.json", "test_share": 0.2}, "leave out --known and --test"),
        ({"false_reject_rate": 1.0}, "a false-reject rate lies between 0 and 1"),
    ],
)
def test_an_option_that_cannot_work_is_an_error(values: dict[str, Any], message: str) -> None:
    with pytest.raises(bgad.BgadError, match=message):
        bgad.TrainOptions(**values)


def test_a_loaded_model_is_a_scorer(model: Path) -> None:
    scorer: Scorer = bgad.load(model, device="cpu")
    image = np.full((20, 30, 3), 140, np.uint8)
    one = scorer.score(image)
    assert isinstance(one, Scores)
    assert one.map.shape == (20, 30)
    assert [s.score for s in scorer.score_many([image])] == pytest.approx([one.score])
    streamed = next(iter(scorer.score_stream([image])))
    assert isinstance(streamed, Scores)
    assert one.threshold == scorer.threshold


LIGHT = (
    "bgad, bgad.cli.main, bgad.io.images, bgad.config, bgad.artifact.folder, bgad.inference.base, bgad.calibration, "
    "bgad.metrics, bgad.data"
)


def test_importing_does_not_import_torch() -> None:
    """The runtime install has no torch: hide it, import all that must work without it."""
    code = (
        "import sys\n"
        "for name in ('torch', 'torchvision', 'timm', 'safetensors'): sys.modules[name] = None\n"
        f"import {LIGHT}\n"
        "import bgad.data.layouts, bgad.data.split, bgad.data.protocols\n"
        "print(bgad.__version__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.strip() == bgad.__version__
    plain = "import sys, bgad; sys.exit(any(m.split('.')[0] in ('torch', 'timm', 'PIL') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", plain], check=False).returncode == 0


def test_threads_sleep_while_they_wait() -> None:
    """Set before torch is loaded; a user's own choice stays."""
    code = "import os, bgad; print(os.environ['OMP_WAIT_POLICY'])"
    for given, expected in (({}, "passive"), ({"OMP_WAIT_POLICY": "active"}, "active")):
        environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"} | given
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected


def test_nothing_is_told_to_anybody(model: Path, tmp_path: Path) -> None:
    """ONNX Runtime keeps what it wants to send in a file of the user's cache."""
    code = f"import bgad, numpy; bgad.load({str(model)!r}, device='cpu').score(numpy.zeros((9, 9, 3), 'uint8'))"
    environment = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    for place in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        environment[place] = str(tmp_path)
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert list(tmp_path.rglob("*")) == []
