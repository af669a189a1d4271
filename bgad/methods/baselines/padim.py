"""PaDiM, written from Defard et al., "PaDiM: a patch distribution modeling framework for anomaly detection and
localization", ICPR workshops 2021.

As printed: features of three strides are joined at the positions of the finest, 100 channels are drawn at random, a
Gaussian with regularised covariance (0.01) is estimated at each position, the map is the Mahalanobis distance, smoothed
by a Gaussian of 4 pixels, and the image score is its maximum.
Not as printed: the backbone and the input are those of the recipe (printed: ResNet-18 or wide ResNet-50 at 224 pixels,
which is the preset `paper`), and the default recipe pools stride 4 to stride 8, as for our own methods.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bgad.config.baselines import PadimConfig
from bgad.errors import ConfigError, DataError
from bgad.methods.checkpoint import LogRow
from bgad.methods.fitting import FitData
from bgad.model.heads.padim import PadimHead
from bgad.types import ProgressTask

MIN_NORMALS = 2  # a covariance needs two


def fit_padim(head: PadimHead, data: FitData) -> Iterator[LogRow]:
    """Estimate the Gaussian of the normals at each position; nothing is trained by steps."""
    settings = head.config.baseline
    assert isinstance(settings, PadimConfig)  # noqa: S101 - Config.check ensures it
    count, (positions, channels) = data.normals.count, head.mean.shape
    if count < MIN_NORMALS:
        raise DataError(f"PaDiM needs {MIN_NORMALS} normals to estimate a covariance, there are {count}: add normals")
    needed = 16.0 * positions * channels**2  # sums in double precision, and the covariances made of them
    if needed > data.memory_bytes:
        raise ConfigError(
            f"PaDiM's covariances take {needed / 1e9:.2g} GB, more than the memory of {data.memory_bytes / 1e9:g} GB: "
            f"raise --memory, or set baseline.channels below {channels}"
        )
    total = torch.zeros(positions, channels, dtype=torch.float64, device=data.device)
    square = torch.zeros(positions, channels, channels, dtype=torch.float64, device=data.device)
    task = ProgressTask(data.control.progress, "Gaussians of the normals", count)
    with torch.inference_mode():
        for maps in data.batches(data.normals):
            rows = head.embed(maps).transpose(0, 1).double()  # (P, B, D)
            total += rows.sum(1)
            square.baddbmm_(rows.transpose(1, 2), rows)
            task.advance(rows.shape[1])
        mean = total / count
        square.baddbmm_(mean[:, :, None], mean[:, None], alpha=-count).div_(count - 1)
        square.diagonal(dim1=1, dim2=2).add_(settings.regularisation)
        identity = torch.eye(channels, dtype=torch.float64, device=data.device)
        for part in range(positions):  # one at a time: in place, without a second copy of all
            lower = torch.linalg.cholesky(square[part])
            square[part] = torch.linalg.solve_triangular(lower, identity, upper=False).T
    head.mean.copy_(mean)
    head.register_buffer("whiten", square.float().clone())
    return iter(())
