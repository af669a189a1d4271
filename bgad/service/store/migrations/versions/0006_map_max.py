"""Keep the maximum of the anomaly map, which says whether a region stands out at the present map threshold."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the column; scores from before have none, and their models are of a format that is not read any more."""
    op.add_column("scores", sa.Column("map_max", sa.Double, nullable=True))
