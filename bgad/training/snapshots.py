"""Copies of the flows during a training, to look at afterwards; no model is chosen by them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bgad.training.loop import TrainingLoop


@dataclass(frozen=True)
class Snapshot:
    """The flows after a step."""

    step: int
    epoch: float  # passes over the normal features of the finest level so far
    phase: int
    state: dict[str, Tensor]


class Snapshots:
    """Takes copies of a loop's flows at even distances and at the end of each phase."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.taken: list[Snapshot] = []

    def follow(self, loop: TrainingLoop) -> None:
        """Take a copy if one is due after this step."""
        schedule = loop.schedule
        due = loop.step % max(1, schedule.steps // self.count) == 0
        if not due and loop.step not in (schedule.push_at, schedule.steps):
            return
        train = loop.config.train
        features = loop.data.normals.count * len(loop.trained_positions[0])
        epoch = loop.step * train.images_per_step * train.positions_per_image[0] / features
        state = {name: value.detach().clone() for name, value in loop.model.levels.state_dict().items()}
        self.taken.append(Snapshot(loop.step, epoch, 1 if loop.step <= schedule.push_at else 2, state))

    def end_of_phase_one(self) -> Snapshot:
        """Return the last copy of phase 1."""
        return [snapshot for snapshot in self.taken if snapshot.phase == 1][-1]


def restore(loop: TrainingLoop, snapshot: Snapshot) -> None:
    """Put the flows of a copy back into the loop's model, with the constants that belong to them."""
    loop.model.levels.load_state_dict(snapshot.state)
    loop.set_constants()
