"""Runs in anomalib's own environment: how long its models take for an image on the CPU. Prints one line of JSON."""

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
from anomalib.models.image.padim.torch_model import PadimModel
from anomalib.models.image.patchcore.torch_model import PatchcoreModel
from PIL import Image

LAYERS = ["blocks.1", "blocks.2", "blocks.4"]
BACKBONE = "tf_efficientnet_lite0"
NORMALS = 32  # PatchCore keeps a tenth of their features; it chooses them one by one, which takes minutes for more


def main() -> None:
    """Fit each model on the normals, then time it; random weights are as fast as trained ones."""
    folder, size = Path(sys.argv[1]), int(sys.argv[2])
    paths = sorted(folder.iterdir())[:NORMALS]
    images = [np.asarray(Image.open(path).convert("RGB").resize((size, size)), np.float32) for path in paths]
    normals = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2) / 255
    found: dict[str, dict[str, float]] = {}
    for name, model in {
        "PatchCore": PatchcoreModel(layers=LAYERS[1:], backbone=BACKBONE, pre_trained=False),
        "PaDiM": PadimModel(layers=LAYERS, backbone=BACKBONE, pre_trained=False, n_features=100),  # as for resnet18
    }.items():
        model.train()
        with torch.no_grad():
            for start in range(0, len(normals), 16):
                model(normals[start : start + 16])
            if name == "PatchCore":
                model.subsample_embedding(sampling_ratio=0.1)
            else:
                model.fit()
        model.eval()
        found[name] = {}
        for batch in (1, 16):
            pixels, times = torch.rand(batch, 3, size, size), []
            with torch.inference_mode():
                for turn in range(7):
                    began = time.perf_counter()
                    model(pixels)
                    if turn > 1:
                        times.append((time.perf_counter() - began) / batch)
            found[name][str(batch)] = statistics.median(times)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
