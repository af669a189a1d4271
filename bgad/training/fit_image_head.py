"""What training finds out besides the flows: the image level, and how much each part of the score counts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
import torch

from bgad.features.cache import Features, Index, chunks, even_pick
from bgad.model.image_head import DiscriminantDirection, ImageHead
from bgad.model.scoring import ScoringModel, default_score_weights, level_anomaly, resize_maps
from bgad.training import image_head_statistics as head_statistics
from bgad.training import score_weights
from bgad.training.loop import Anomalies, Trainer
from bgad.training.training_set import Material
from bgad.types import FloatArray

logger = logging.getLogger(__name__)

ASIDE, FEW_ASIDE = 64, 16  # normals that the flows do not learn: at most; at least, where a third is that many
MIN_ASIDE = 32  # training normals; of fewer, none are set aside
DIRECTION_IMAGES = 300  # training normals that a direction towards known anomalies is measured on
MAX_WEIGHED = 200  # known anomalies that the parts of the score are weighed by
LEAST = 1e-3  # share of a level beforehand: what has been ruled out may come back

Along = head_statistics.Array  # how far beyond the normals' edge images lie in a direction
# The direction towards chosen anomalies, and the normals along it.
Find = Callable[[Index], tuple[DiscriminantDirection, Along]]
Look = Callable[[DiscriminantDirection], Along]  # all anomalies along a direction
Evidence = tuple[FloatArray, FloatArray]  # how strange normals (n,) and known anomalies (k,) are as a whole


class Weighing:
    """Fits the image level at once; `weigh` mixes the parts of the score while the flows know no anomalies.

    `unseen` are the training normals that the flows do not learn, so that they show how a model sees new normals. Where
    normals are few, the flows learn all of them, and the parts count as if no anomalies were known. `sample` are these,
    or some of the learnt ones where there are none.
    """

    def __init__(
        self,
        model: ScoringModel,
        material: Material,
        aside: Index | None = None,
        new: Index | None = None,
        taught: Index | None = None,
    ) -> None:
        """`aside`: which normals the flows are not to learn; chosen here by default. `new`: where the flows come from
        another model, the known anomalies that these have not learnt; the model's mix then counts for the others.
        `taught`: the known anomalies that were taught, which have directions of their own."""
        self.model, self.new = model, new
        self.prior: list[float] = default_score_weights(model.config) if new is None else model.score_weights.tolist()
        normals = material.normals
        everyone = np.arange(normals.count)
        wanted = model.image_head is not None or model.config.score.evidence_weight > 0
        chosen = set_aside(normals.count, material.pictures) if aside is None else aside
        kept = chosen if wanted else everyone[:0]
        together = (
            kept if material.pictures is None else np.flatnonzero(np.isin(material.pictures, material.pictures[kept]))
        )
        self.learnt = normals.select(np.setdiff1d(everyone, together))  # no tile beside one that is set aside
        self.aside = kept
        self.unseen = normals.select(kept) if len(kept) else None
        self.sample_index: Index = kept if len(kept) else even_pick(normals.count, ASIDE)
        self.sample = normals.select(self.sample_index)
        self.known = next((group for group in material.anomalies if not group.pseudo), None)
        self.evidence: Evidence | None = None
        if model.image_head is not None:
            self.evidence = fit_image_level(model, model.image_head, normals, self.known, self.sample_index, taught)

    def weigh(self, trainer: Trainer) -> None:
        """Set the model's mix from what the known anomalies look like to the flows of now."""
        config = self.model.config.score
        found = list(self.prior)
        voters = np.arange(self.known.store.count if self.known else 0) if self.new is None else self.new
        if self.known is not None and len(voters) and config.evidence_weight and self.unseen is not None:
            some = voters[even_pick(len(voters), MAX_WEIGHED)]
            normals, known = self._maps(trainer, self.known.store.select(some))
            cells = _cells(self.known, 0, some)
            found[:-1] = score_weights.level_shares(
                [max(share, LEAST) for share in found[:-1]],
                normals,
                known,
                cells,
                top_share=config.top_share,
                trust=config.evidence_weight,
            )
            if self.evidence is not None and config.image_head_weight:
                shares = found[:-1]
                ours, theirs = (
                    score_weights.top_mean(score_weights.mixed(shares, maps), config.top_share)
                    for maps in (normals, known)
                )
                centre, spread = float(ours.mean()), max(float(ours.std()), 1e-6)
                weight = score_weights.image_weight(
                    found[-1],
                    ((ours - centre) / spread, self.evidence[0]),
                    ((theirs - centre) / spread, self.evidence[1][some]),
                    trust=config.evidence_weight,
                )
                found[-1] = min(max(weight, config.image_head_weight / 8), config.image_head_weight * 8)
            part = len(voters) / self.known.store.count  # of the others the mix of before tells
            found = [part * now + (1 - part) * before for now, before in zip(found, self.prior, strict=True)]
        self.model.score_weights.copy_(torch.tensor(found))

    def _maps(self, trainer: Trainer, known: Features) -> tuple[list[FloatArray], list[FloatArray]]:
        """The strangeness maps (images, positions) of each level on the finest grid: normals and known anomalies."""
        grid, near = trainer.levels[0].grid, trainer.near[0]
        outside = np.setdiff1d(np.arange(grid[0] * grid[1]), near)

        def look(i: int) -> tuple[FloatArray, FloatArray]:
            level, config = trainer.levels[i], self.model.config.score
            log_p = [torch.from_numpy(trainer.log_p(store, i)) for store in (self.sample, known)]
            constants = torch.tensor(trainer.constants_of(trainer.looked_at(i, log_p[0].numpy())).values())
            shaped = [level_anomaly(x, constants, config).reshape(-1, *level.grid) for x in log_p]
            maps = [resize_maps(x, grid).flatten(1) for x in shaped]
            for one in maps:  # nothing is to be seen where nobody looks
                one[:, outside] = one[:, near].amin(1, keepdim=True)
            return maps[0].numpy(), maps[1].numpy()

        found = trainer.workers.each(look)
        return [normals for normals, _ in found], [anomalies for _, anomalies in found]


def set_aside(count: int, pictures: Index | None = None) -> Index:
    """Every eighth of the training normals, 64 at most; more of few, as units that rest on six normals are wrong by a
    factor; none where there are very few. Tiles are set aside with all of their picture, so of `pictures` (one number
    for each normal) every eighth is taken.

    >>> len(set_aside(31)), len(set_aside(40)), len(set_aside(59)), len(set_aside(400)), len(set_aside(5000))
    (0, 13, 16, 50, 64)
    >>> set_aside(40, np.repeat(np.arange(8), 5)).tolist()
    [0, 1, 2, 3, 4]
    """
    if pictures is None or len(np.unique(pictures)) == count:
        wanted = max(count // 8, min(FEW_ASIDE, count // 3))
        return even_pick(count, min(ASIDE, wanted) if count >= MIN_ASIDE else 0)
    numbers = np.unique(pictures)
    chosen = numbers[even_pick(len(numbers), len(numbers) // 8)]
    of_them = np.flatnonzero(np.isin(pictures, chosen))
    return of_them[even_pick(len(of_them), ASIDE)] if count >= MIN_ASIDE else of_them[:0]


def fit_image_level(
    model: ScoringModel,
    level: ImageHead,
    normals: Features,
    known: Anomalies | None,
    sample: Index,
    taught: Index | None = None,
) -> Evidence | None:
    """From the normals and the real known anomalies; those of a first training and those `taught` since have
    directions of their own, as the mean of two kinds of defects may resemble neither.

    Tells how strange a sample of the normals and the known anomalies are, each as if the level had not seen it.
    """
    x = _summaries(model, level, normals)
    if len(x) < head_statistics.MIN_NORMALS:
        logger.warning(f"{len(x)} normals are too few to judge an image as a whole: only its map counts")
        return None
    fitted = head_statistics.DescriptorStatistics(x)
    level.set_gaussian(fitted.gaussian)
    if known is None:
        return fitted.normal_distances[sample].astype(np.float32), np.zeros(0, np.float32)
    everyone = np.arange(known.store.count)
    later = np.isin(everyone, [] if taught is None else taught)
    kinds = [kind for kind in (everyone[~later], everyone[later]) if len(kind)]
    bad = _summaries(model, level, known.store)
    ways = [_of_summary(fitted, bad, sample), *(_of_map(normals, known, i, sample) for i in model.image_head_maps)]
    ours, theirs = list[Along](), list[Along]()
    for place, (find, look) in enumerate(ways):
        directions, normal, anomalous = _farthest(kinds, find, look)
        level.set_directions(place, directions)
        ours.append(normal)
        theirs.append(anomalous)
    if known.store.count == 1:
        ours = [np.zeros(len(sample))]  # nobody else could give a direction: only distances are compared

    def whole(distance: head_statistics.Array, places: list[head_statistics.Array]) -> FloatArray:
        strange: FloatArray = model.image_head_score(
            torch.from_numpy(distance), torch.from_numpy(np.stack(places, axis=1))
        ).numpy()
        return strange.astype(np.float32)

    return whole(fitted.normal_distances[sample], ours), whole(fitted.distances(bad), theirs)


def _farthest(kinds: Sequence[Index], find: Find, look: Look) -> tuple[list[DiscriminantDirection], Along, Along]:
    """The directions towards each kind of known anomalies; along the one that leads farthest, how far beyond the
    normals lie, and each anomaly along directions that it had no part in."""
    found = [find(kind) for kind in kinds]
    count = sum(len(kind) for kind in kinds)
    fold = np.arange(count) % head_statistics.FOLDS
    anomalous = np.zeros(count)
    for number in range(min(count, head_statistics.FOLDS) if count > 1 else 0):
        others = [kind[fold[kind] != number] for kind in kinds]
        apart = [look(find(kind)[0]) for kind in others if len(kind)]
        anomalous[fold == number] = np.max(apart, axis=0)[fold == number]
    return [direction for direction, _ in found], np.max([along for _, along in found], axis=0), anomalous


def _of_summary(fitted: head_statistics.DescriptorStatistics, bad: FloatArray, sample: Index) -> tuple[Find, Look]:
    def find(chosen: Index) -> tuple[DiscriminantDirection, Along]:
        direction, own = fitted.direction(bad[chosen])
        return direction, own[sample]

    return find, lambda direction: direction.excess(bad @ direction.vector)


def _of_map(normals: Features, known: Anomalies, i: int, sample: Index) -> tuple[Find, Look]:
    everyone = np.arange(known.store.count)
    places = head_statistics.FeatureStatistics(normals.rows(i, even_pick(normals.count, DIRECTION_IMAGES)))
    good, bad, cells = normals.rows(i, sample), known.store.rows(i, everyone), _cells(known, i, everyone)

    def find(chosen: Index) -> tuple[DiscriminantDirection, Along]:
        direction = places.direction(bad[chosen], [cells[k] for k in chosen])
        return direction, direction.excess(head_statistics.direction_peaks(good @ direction.vector))

    return find, lambda direction: direction.excess(head_statistics.direction_peaks(bad @ direction.vector))


def _summaries(model: ScoringModel, level: ImageHead, features: Features) -> FloatArray:
    parts = [np.arange(part.start, part.stop) for part in chunks(features.count, 16)]
    rows = ([torch.from_numpy(features.rows(i, part)) for i in model.image_head_maps] for part in parts)
    return np.concatenate([level.descriptor(maps).numpy() for maps in rows])


def _cells(known: Anomalies, i: int, chosen: Index) -> list[Index | None]:
    return [known.cells[i][k] if known.marked[k] else None for k in chosen]
