"""Keep the image that an event is about in a column, so that the history can be searched by the image's name."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

# The detail of such an event begins with `image NUMBER: `.
IMAGE_OF = {
    "sqlite": "CAST(substr(detail, 7, instr(detail, ':') - 7) AS INTEGER)",
    "postgresql": "CAST(split_part(substr(detail, 7), ':', 1) AS INTEGER)",
}


def upgrade() -> None:
    """Add the column and fill it."""
    op.add_column("events", sa.Column("image", sa.Integer, nullable=True))
    number = IMAGE_OF[op.get_bind().dialect.name]
    op.execute(
        f"UPDATE events SET image = {number}"  # noqa: S608 - one of the constants above
        " WHERE what IN ('review', 'undo review', 'drift alarm') AND detail LIKE 'image %: %'"
    )
