"""Fits what the score needs besides the flows: the image head, the level weights and the image-head weight."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from bgad.features.cache import Features, even_pick
from bgad.model.scoring import ScoringModel, default_score_weights, level_anomaly, resize_maps
from bgad.training import score_weights
from bgad.training.fit_image_head import HeadScores, fit_image_head, marked_cells
from bgad.training.likelihoods import LevelLikelihoods
from bgad.training.training_set import AnomalyFeatures, TrainingSet
from bgad.training.validation_normals import choose_validation_normals, partition_normals
from bgad.training.warm_start import WarmStart
from bgad.types import FloatArray, Index

MAX_VOTERS = 200  # known anomalies that the weights are fitted to: more do not move them, and their maps take memory
MIN_LEVEL_PRIOR = 1e-3  # an update may give weight again to a level whose weight an earlier fit has set to 0
# The posterior of the image-head weight stays within this factor of the recipe's weight. Beyond it, either the map or
# the image head would have no influence, and known anomalies say nothing about defects of another kind.
MAX_HEAD_WEIGHT_FACTOR = 8


class ScoreWeightFitter:
    """Divides the normals and fits the image head when it is made; `fit` sets the weights of the score.

    The weights are fitted while the flows know no anomaly (or, in an update, none of the new ones), because known
    anomalies are then as new to them as those to come. Without validation normals the weights keep their priors.
    """

    def __init__(self, model: ScoringModel, training_set: TrainingSet, warm_start: WarmStart | None = None) -> None:
        self.model = model
        self.new_anomalies = None if warm_start is None else warm_start.new_anomalies
        self.prior: list[float] = (
            default_score_weights(model.config) if warm_start is None else model.score_weights.tolist()
        )
        count = training_set.normals.count
        if (
            model.image_head is None and model.config.score.evidence_weight <= 0
        ):  # nothing here needs validation normals
            chosen = np.arange(0)
        elif warm_start is not None:
            chosen = warm_start.validation
        else:
            chosen = choose_validation_normals(count, training_set.image_numbers)
        self.partition = partition_normals(training_set, chosen)
        self.known = training_set.known
        trained = training_set.trained_positions
        self._trained_positions = None if trained is None else trained[0]
        self.head_scores: HeadScores | None = None
        if model.image_head is not None:
            taught = None if warm_start is None else warm_start.taught_anomalies
            reference = self.partition.reference_index
            self.head_scores = fit_image_head(
                model, model.image_head, training_set.normals, self.known, reference, taught
            )

    def fit(self, likelihoods: LevelLikelihoods) -> None:
        """Set the weights of the model from the log-likelihoods of known anomalies under its present flows."""
        config, known = self.model.config.score, self.known
        weights = list(self.prior)
        voters = np.arange(known.features.count if known else 0) if self.new_anomalies is None else self.new_anomalies
        if known is not None and len(voters) and config.evidence_weight and self.partition.validation is not None:
            voter_sample = voters[even_pick(len(voters), MAX_VOTERS)]
            weights = self._posterior(likelihoods, known, voter_sample)
            # In an update, the weights of before stand for the anomalies that the model knew already.
            share = len(voters) / known.features.count
            weights = [share * now + (1 - share) * before for now, before in zip(weights, self.prior, strict=True)]
        self.model.score_weights.copy_(torch.tensor(weights))

    def _posterior(self, likelihoods: LevelLikelihoods, known: AnomalyFeatures, voters: Index) -> list[float]:
        """The level weights and the image-head weight, given some of the known anomalies."""
        config = self.model.config.score
        normal_maps, known_maps = self._anomaly_maps(likelihoods, known.features.select(voters))
        level_weights = score_weights.level_weights(
            [max(weight, MIN_LEVEL_PRIOR) for weight in self.prior[:-1]],
            normal_maps,
            known_maps,
            marked_cells(known, 0, voters),
            top_share=config.top_share,
            evidence_weight=config.evidence_weight,
        )
        head_weight = self.prior[-1]
        if self.head_scores is not None and config.image_head_weight:
            normal_scores, known_scores = (
                score_weights.top_mean(score_weights.weighted_map(level_weights, maps), config.top_share)
                for maps in (normal_maps, known_maps)
            )
            mean, spread = float(normal_scores.mean()), max(float(normal_scores.std()), 1e-6)
            posterior = score_weights.image_head_weight(
                head_weight,
                ((normal_scores - mean) / spread, self.head_scores.normals),
                ((known_scores - mean) / spread, self.head_scores.known[voters]),
                evidence_weight=config.evidence_weight,
            )
            lowest = config.image_head_weight / MAX_HEAD_WEIGHT_FACTOR
            head_weight = min(max(posterior, lowest), config.image_head_weight * MAX_HEAD_WEIGHT_FACTOR)
        return [*level_weights, head_weight]

    def _anomaly_maps(
        self, likelihoods: LevelLikelihoods, known: Features
    ) -> tuple[Sequence[FloatArray], Sequence[FloatArray]]:
        """The anomaly maps (images, positions) of each level on the finest grid: of normals and of known anomalies."""
        grid = likelihoods.levels[0].grid
        everywhere = np.arange(grid[0] * grid[1])
        trained = everywhere if self._trained_positions is None else self._trained_positions
        outside = np.setdiff1d(everywhere, trained)

        def level_maps(i: int) -> tuple[FloatArray, FloatArray]:
            level, config = likelihoods.levels[i], self.model.config.score
            log_p = [torch.from_numpy(likelihoods.of_images(i, x)) for x in (self.partition.reference, known)]
            normal_log_p = likelihoods.inside_roi(i, log_p[0].numpy())
            constants = torch.tensor(likelihoods.constants_of(normal_log_p).values())
            shaped = [level_anomaly(x, constants, config).reshape(-1, *level.grid) for x in log_p]
            maps = [resize_maps(x, grid).flatten(1) for x in shaped]
            for anomaly_map in maps:  # outside of the region of interest there is no anomaly
                anomaly_map[:, outside] = anomaly_map[:, trained].amin(1, keepdim=True)
            return maps[0].numpy(), maps[1].numpy()

        maps = likelihoods.workers.each(level_maps)
        return [of_normals for of_normals, _ in maps], [of_known for _, of_known in maps]
