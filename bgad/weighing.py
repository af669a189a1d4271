"""What training finds out besides the flows: the image level, and how much each part of the score counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from bgad import console, image_level, mix
from bgad.detector import ImageLevel, ScoringModel, default_mix, enlarge, strangeness
from bgad.features import Features, Index, chunks
from bgad.material import Material
from bgad.trainer import Anomalies, Trainer
from bgad.types import FloatArray

ASIDE, MIN_ASIDE = 64, 32
DIRECTION_IMAGES = 300  # training normals that a direction towards known anomalies is measured on
MAX_WEIGHED = 200  # known anomalies that the parts of the score are weighed by

Evidence = tuple[FloatArray, FloatArray]  # how strange normals (n,) and known anomalies (k,) are as a whole


class Weighing:
    """Fits the image level at once; `weigh` mixes the parts of the score while the flows know no anomalies.

    `unseen` are the training normals that the flows do not learn, so that they show how a model sees new normals; where
    normals are few, the flows learn all of them. `sample` are these, or some of the learnt ones where there are none.
    """

    def __init__(self, model: ScoringModel, material: Material) -> None:
        self.model = model
        normals = material.normals
        everyone = np.arange(normals.count)
        kept = set_aside(normals.count) if model.image is not None else everyone[:0]
        self.learnt = normals.select(np.setdiff1d(everyone, kept))
        self.unseen = normals.select(kept) if len(kept) else None
        self.sample_index: Index = kept if len(kept) else _even(normals.count, ASIDE)
        self.sample = normals.select(self.sample_index)
        self.known = next((group for group in material.anomalies if not group.pseudo), None)
        self.evidence: Evidence | None = None
        if model.image is not None:
            self.evidence = fit_image_level(model, model.image, normals, self.known, self.sample_index)

    def weigh(self, trainer: Trainer) -> None:
        """Set the model's mix from what the known anomalies look like to the flows of now."""
        config = self.model.config.score
        found = default_mix(self.model.config)
        if self.known is not None and config.trust:
            some = _even(self.known.store.count, MAX_WEIGHED)
            normals, known = self._maps(trainer, self.known.store.select(some))
            cells = _cells(self.known, 0, some)
            found[:-1] = mix.level_shares(
                found[:-1], normals, known, cells, top_share=config.top_share, trust=config.trust
            )
            if self.evidence is not None and config.image_weight:
                shares = found[:-1]
                ours, theirs = (mix.top_mean(mix.mixed(shares, maps), config.top_share) for maps in (normals, known))
                centre, spread = float(ours.mean()), max(float(ours.std()), 1e-6)
                found[-1] = mix.image_weight(
                    config.image_weight,
                    ((ours - centre) / spread, self.evidence[0]),
                    ((theirs - centre) / spread, self.evidence[1][some]),
                    trust=config.trust,
                )
        self.model.mix.copy_(torch.tensor(found))

    def _maps(self, trainer: Trainer, known: Features) -> tuple[list[FloatArray], list[FloatArray]]:
        """The strangeness maps (images, positions) of each level on the finest grid: normals and known anomalies."""
        grid = trainer.levels[0].grid

        def look(i: int) -> tuple[FloatArray, FloatArray]:
            level, fusion = trainer.levels[i], self.model.config.score.fusion
            log_p = [torch.from_numpy(trainer.log_p(store, i)) for store in (self.sample, known)]
            constants = torch.tensor(trainer.constants_of(log_p[0].numpy()).values())
            shaped = [strangeness(x, constants, fusion).reshape(-1, *level.grid) for x in log_p]
            maps = [enlarge(x, grid) for x in shaped]
            return maps[0].flatten(1).numpy(), maps[1].flatten(1).numpy()

        found = trainer.workers.each(look)
        return [normals for normals, _ in found], [anomalies for _, anomalies in found]


def set_aside(count: int) -> Index:
    """Every eighth of the training normals, 64 at most; none where there are few.

    >>> len(set_aside(31)), len(set_aside(59)), len(set_aside(5000))
    (0, 7, 64)
    """
    return _even(count, min(ASIDE, count // 8) if count >= MIN_ASIDE else 0)


def fit_image_level(
    model: ScoringModel, level: ImageLevel, normals: Features, known: Anomalies | None, sample: Index
) -> Evidence | None:
    """From the normals and the real known anomalies.

    Tells how strange a sample of the normals and the known anomalies are, each as if the level had not seen it.
    """
    x = _summaries(model, level, normals)
    if len(x) < image_level.MIN_NORMALS:
        console.warn(f"{len(x)} normals are too few to judge an image as a whole: only its map counts")
        return None
    fitted = image_level.Summaries(x)
    level.set_whole(fitted.whole)
    if known is None:
        return fitted.normals[sample].astype(np.float32), np.zeros(0, np.float32)
    store = known.store
    bad, everyone = _summaries(model, level, store), np.arange(store.count)
    some = _even(normals.count, DIRECTION_IMAGES)
    places = [image_level.Places(normals.rows(i, some)) for i in model.summed]

    def towards(chosen: Index) -> list[image_level.Direction]:
        maps = zip(model.summed, places, strict=True)
        return [place.direction(store.rows(i, chosen), _cells(known, i, chosen)) for i, place in maps]

    def beyond(
        directions: Sequence[image_level.Direction], features: Features, chosen: Index
    ) -> list[image_level.Array]:
        maps = zip(model.summed, directions, strict=True)
        return [d.beyond(image_level.peaks(features.rows(i, chosen) @ d.towards)) for i, d in maps]

    direction, own = fitted.direction(bad)
    directions = towards(everyone)
    for place, found in enumerate([direction, *directions]):
        level.set_direction(place, found)
    ours = np.stack([own[sample], *beyond(directions, normals, sample)], axis=1)
    theirs = np.zeros((store.count, ours.shape[1]))  # of a single one nothing can be said
    folds = min(store.count, image_level.FOLDS)
    for fold in range(folds if folds > 1 else 0):
        out, rest = everyone[everyone % folds == fold], everyone[everyone % folds != fold]
        along, _ = fitted.direction(bad[rest])
        theirs[out] = np.stack([along.beyond(bad[out] @ along.towards), *beyond(towards(rest), store, out)], axis=1)

    def whole(distance: image_level.Array, places: image_level.Array) -> FloatArray:
        strange: FloatArray = model.whole(torch.from_numpy(distance), torch.from_numpy(places)).numpy()
        return strange.astype(np.float32)

    return whole(fitted.normals[sample], ours), whole(fitted.distances(bad), theirs)


def _summaries(model: ScoringModel, level: ImageLevel, features: Features) -> FloatArray:
    parts = [np.arange(part.start, part.stop) for part in chunks(features.count, 16)]
    rows = ([torch.from_numpy(features.rows(i, part)) for i in model.summed] for part in parts)
    return np.concatenate([level.summarise(maps).numpy() for maps in rows])


def _cells(known: Anomalies, i: int, chosen: Index) -> list[Index | None]:
    return [known.cells[i][k] if known.marked[k] else None for k in chosen]


def _even(count: int, most: int) -> Index:
    """An even pick of at most so many numbers below `count`."""
    return np.linspace(0, count - 1, min(count, most)).round().astype(np.int64)
