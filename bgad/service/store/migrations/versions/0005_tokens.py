"""Tokens for single models, with an expiry and the last use; which token sent an image."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the columns of tokens and the table of senders; existing tokens keep all models and do not expire."""
    op.add_column("tokens", sa.Column("models", sa.JSON, nullable=True))
    op.add_column("tokens", sa.Column("expires", sa.Double, nullable=True))
    op.add_column("tokens", sa.Column("used", sa.Double, nullable=True))
    op.create_table(
        "senders",
        sa.Column("image", sa.Integer, sa.ForeignKey("images.id"), primary_key=True),
        sa.Column("token", sa.String(200), primary_key=True),
    )
