"""Keep the parts of each score and the region that stands out; scores from before have neither."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add two columns to the scores; in words, why an image is rejected follows from them and the model card."""
    op.add_column("scores", sa.Column("parts", sa.JSON, nullable=True))
    op.add_column("scores", sa.Column("region", sa.JSON, nullable=True))
