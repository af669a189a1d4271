"""Keep the threshold with the version, so that a new one leaves the scores as they were sent."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

LAST_THRESHOLD = (
    "UPDATE versions SET threshold = (SELECT scores.threshold FROM scores WHERE scores.version = versions.id"
    " ORDER BY scores.created DESC LIMIT 1) WHERE rate IS NOT NULL"
)


def upgrade() -> None:
    """Move the present threshold to the versions and drop the distance from it, which is computed."""
    op.add_column("versions", sa.Column("threshold", sa.Double, nullable=True))
    op.execute(LAST_THRESHOLD)
    op.drop_index("ix_scores_version_distance", "scores")
    op.drop_column("scores", "distance")
