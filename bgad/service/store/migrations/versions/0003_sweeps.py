"""Remember the sweeps of retention, so that an image is dropped only if it was due long enough."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "sweeps",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("before", sa.Double, nullable=False),
    )
