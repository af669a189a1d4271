"""Pictures that nobody reviewed may be dropped."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """All that are there have been kept."""
    op.add_column("images", sa.Column("dropped", sa.Double, nullable=True))
    kept = sa.text("dropped IS NULL")
    op.create_index("ix_images_kept", "images", ["received", "id"], sqlite_where=kept, postgresql_where=kept)
    gone = sa.text("dropped IS NOT NULL")
    op.create_index("ix_images_dropped", "images", ["dropped"], sqlite_where=gone, postgresql_where=gone)
    op.create_table("leftovers", sa.Column("image", sa.Integer, sa.ForeignKey("images.id"), primary_key=True))
