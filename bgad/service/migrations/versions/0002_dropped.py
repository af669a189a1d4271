"""When the picture of an image was dropped, as nobody had reviewed it."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """All that are there have been kept."""
    op.add_column("images", sa.Column("dropped", sa.Double, nullable=True))
    op.create_index("ix_images_dropped_received", "images", ["dropped", "received"])
