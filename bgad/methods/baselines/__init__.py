"""The baselines: systems of other papers, fitted and scored beside ours on the same splits.

A baseline has four parts, each in its own layer:

1. its entry and its settings in `bgad/config/baselines.py` or `bgad/config/supervised.py` (BASELINES): what
   it is, where it is from, whether it needs known anomalies and masks, whether it learns from pixels, and its presets;
2. its head in `bgad/model/heads/` (HEADS): a torch module from feature maps to image score and anomaly map;
3. its fit in this package (FITS): a function of the head and `FitData` that sets the head's parameters and buffers. A
   fit that trains by steps is a generator around `bgad.methods.loop.train_steps`, which saves and continues;
4. a docstring in the module of its fit: what is as printed, what is not, and the source.

Everything else is that of our own methods: cached features, calibration, model folder, export, benchmark. A fit sees
training normals, and known anomalies where the entry says so; it must depend on nothing but them and the seed.
`tests/methods/baselines/test_baselines.py` checks every entry.
"""

from __future__ import annotations

from bgad.config import BASELINES, Config
from bgad.data.split import Split
from bgad.errors import DataError
from bgad.methods.baselines.autoencoder import fit_autoencoder
from bgad.methods.baselines.cfa import fit_cfa
from bgad.methods.baselines.devnet import fit_devnet
from bgad.methods.baselines.dra import fit_dra
from bgad.methods.baselines.draem import fit_draem
from bgad.methods.baselines.fcdd import fit_fcdd
from bgad.methods.baselines.flos import fit_flos
from bgad.methods.baselines.kdad import fit_kdad
from bgad.methods.baselines.mlep import fit_mlep
from bgad.methods.baselines.msfd import fit_msfd
from bgad.methods.baselines.padim import fit_padim
from bgad.methods.baselines.patchcore import fit_patchcore
from bgad.methods.baselines.saoe import fit_saoe
from bgad.methods.baselines.vt_adl import fit_vt_adl
from bgad.methods.fitting import Fit

FITS: dict[str, Fit] = {
    "padim": fit_padim,
    "patchcore": fit_patchcore,
    "cfa": fit_cfa,
    "msfd": fit_msfd,
    "kdad": fit_kdad,
    "ae-mse": fit_autoencoder,
    "ae-ssim": fit_autoencoder,
    "draem": fit_draem,
    "vt-adl": fit_vt_adl,
    **dict.fromkeys(("devnet-frozen", "devnet"), fit_devnet),
    **dict.fromkeys(("flos-frozen", "flos"), fit_flos),
    **dict.fromkeys(("dra-frozen", "dra"), fit_dra),
    **dict.fromkeys(("saoe-frozen", "saoe"), fit_saoe),
    **dict.fromkeys(("mlep-frozen", "mlep"), fit_mlep),
    **dict.fromkeys(("fcdd-frozen", "fcdd"), fit_fcdd),
}


def check_split(config: Config, split: Split) -> None:
    """DataError where a split lacks what the baseline of a recipe learns from."""
    entry = BASELINES[config.method]
    if not entry.supervised:
        return
    if not split.known:
        others = ", ".join(name for name, other in BASELINES.items() if not other.supervised)
        raise DataError(f"{config.method} needs known anomalies, and there are none: add some, or train {others}")
    if entry.needs_masks and all(sample.mask is None for sample in split.known):
        raise DataError(f"{config.method} needs known anomalies with masks, and none has one: add masks")
