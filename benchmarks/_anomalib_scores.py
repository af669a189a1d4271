"""Runs in anomalib's own environment: fits one of its models by a job of anomalib_check.py, and scores images.

Networks, memory banks, losses, optimisers and scores are anomalib's. The loop around them is here, so that both sides
have the same weights, the same pixels and the same number of steps.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from anomalib.data.utils.generators.perlin import PerlinAnomalyGenerator
from anomalib.models.components.feature_extractors.timm import TimmFeatureExtractor
from anomalib.models.image.cfa import torch_model as cfa_model
from anomalib.models.image.cfa.loss import CfaLoss
from anomalib.models.image.draem.loss import DraemLoss
from anomalib.models.image.draem.torch_model import DiscriminativeSubNetwork, DraemModel, ReconstructiveSubNetwork
from anomalib.models.image.padim.torch_model import PadimModel
from anomalib.models.image.patchcore.torch_model import PatchcoreModel
from anomalib.models.image.stfpm import torch_model as stfpm_model
from anomalib.models.image.stfpm.loss import STFPMLoss
from torch import Tensor

LAYERS = {4: "blocks.1", 8: "blocks.2", 16: "blocks.4"}  # stride -> layer of EfficientNet-Lite0
BACKBONE = "tf_efficientnet_lite0"
BATCH = 8  # images that are scored at a time


class Job:
    """What to fit, on which pixels, and with which weights."""

    def __init__(self, path: Path) -> None:
        values = json.loads(path.read_bytes())
        self.system: str = values["system"]
        self.settings: dict[str, Any] = values["settings"]
        self.picked: list[int] = values["picked"]  # channels of PaDiM
        self.steps: int = values["steps"]
        self.train: list[int] = values["train"]
        self.test: list[int] = values["test"]
        self.mean, self.std = values["mean"], values["std"]
        self.pixels = np.load(values["pixels"], mmap_mode="r")  # (N, S, S, 3) in 0..1
        self.weights = torch.load(values["weights"], weights_only=True)
        self.layers = [LAYERS[stride] for stride in self.settings.get("strides", ())]

    def images(self, numbers: list[int]) -> Tensor:
        """Return normalised images (B, 3, S, S)."""
        values: Tensor = torch.from_numpy(np.array(self.pixels[numbers])).permute(0, 3, 1, 2)
        normalised: Tensor = (values - self.mean) / self.std
        return normalised

    def batches(self, numbers: list[int], size: int = BATCH) -> Iterator[Tensor]:
        """Yield images in order, a few at a time."""
        for start in range(0, len(numbers), size):
            yield self.images(numbers[start : start + size])

    def load(self, extractor: Any) -> None:
        """Put the weights into a feature extractor."""
        net = extractor.feature_extractor
        net.load_state_dict({key: self.weights[key] for key in net.state_dict()})


def train(job: Job, model: Any, optimiser: torch.optim.Optimizer, loss: Callable[[Tensor], Tensor]) -> None:
    """Train by steps; every epoch takes the normals in another order."""
    rng, order = np.random.default_rng(0), list[int]()
    size = job.settings["images_per_step"]
    model.train()
    for step in range(job.steps):
        while len(order) < size:
            order += [job.train[i] for i in rng.permutation(len(job.train))]
        chosen, order = order[:size], order[size:]
        value = loss(job.images(chosen))
        optimiser.zero_grad(set_to_none=True)
        value.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if (step + 1) % 50 == 0:
            print(f"{job.system}: step {step + 1} of {job.steps}, loss {value.item():.4f}", file=sys.stderr)


def padim(job: Job) -> Any:
    """Fit PaDiM."""
    model = PadimModel(BACKBONE, job.layers, pre_trained=False, n_features=len(job.picked))
    model.idx = torch.tensor(job.picked)
    job.load(model.feature_extractor)
    model.train()
    for images in job.batches(job.train):
        model(images)
    model.fit()
    return model


def patchcore(job: Job) -> Any:
    """Fit PatchCore."""
    neighbours = job.settings["neighbours"]
    model = PatchcoreModel(job.layers, BACKBONE, pre_trained=False, num_neighbors=neighbours)
    job.load(model.feature_extractor)
    model.train()
    for images in job.batches(job.train):
        model(images)
    model.subsample_embedding(sampling_ratio=job.settings["coreset_share"])
    return model


def cfa(job: Job) -> Any:
    """Fit CFA, whose list of backbones lacks ours: its extractor and the channels of its descriptor are replaced."""
    extractor = TimmFeatureExtractor(BACKBONE, job.layers, pre_trained=False)
    job.load(extractor)
    cfa_model.get_return_nodes = lambda _: job.layers
    cfa_model.get_feature_extractor = lambda *_: extractor
    near, radius = job.settings["neighbours"], job.settings["radius"]
    model = cfa_model.CfaModel("resnet18", 1, 1, near, near, radius)
    channels = sum(extractor.out_dims)
    model.descriptor.layer = cfa_model.CoordConv2d(channels, channels, kernel_size=1)
    model.initialize_centroid([SimpleNamespace(image=images) for images in job.batches(job.train)])
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=5e-4, amsgrad=True)
    with torch.no_grad():
        criterion = CfaLoss(near, near, radius)
    train(job, model, optimiser, lambda images: criterion(model(images)))
    return model


def stfpm(job: Job) -> Any:
    """Fit STFPM, whose teacher would be downloaded."""
    stfpm_model.TimmFeatureExtractor = lambda **options: TimmFeatureExtractor(**options | {"pre_trained": False})
    model = stfpm_model.STFPMModel(job.layers, BACKBONE)
    job.load(model.teacher_model)
    criterion = STFPMLoss()
    optimiser = torch.optim.SGD(model.student_model.parameters(), lr=0.4, momentum=0.9, weight_decay=1e-3)
    train(job, model, optimiser, lambda images: criterion(*model(images)))
    return model


def draem(job: Job) -> Any:
    """Fit DRAEM with networks as narrow as those of our recipe, and its learning rate."""
    model, criterion, augment = DraemModel(), DraemLoss(), PerlinAnomalyGenerator()
    model.reconstructive_subnetwork = ReconstructiveSubNetwork(base_width=job.settings["reconstructive_width"])
    width = job.settings["discriminative_width"]
    model.discriminative_subnetwork = DiscriminativeSubNetwork(in_channels=6, out_channels=2, base_width=width)

    def loss(images: Tensor) -> Any:
        changed, masks = augment(images)
        reconstruction, prediction = model(changed)
        return criterion(images, reconstruction, masks, prediction)

    train(job, model, torch.optim.Adam(model.parameters(), lr=job.settings["lr"]), loss)
    return model


def main() -> None:
    """Fit, score, and write the scores of the test images in their order."""
    job, out = Job(Path(sys.argv[1])), Path(sys.argv[2])
    torch.manual_seed(0)
    began = time.perf_counter()
    fits: dict[str, Callable[[Job], Any]] = {f.__name__: f for f in (padim, patchcore, cfa, stfpm, draem)}
    model = fits[job.system](job).eval()
    fitted = time.perf_counter()
    scores: list[float] = []
    with torch.inference_mode():
        for images in job.batches(job.test):
            scores += model(images).pred_score.flatten().tolist()
    seconds = {"fit": fitted - began, "score": time.perf_counter() - fitted}
    out.write_text(json.dumps({"scores": scores, "seconds": seconds}))


if __name__ == "__main__":
    main()
