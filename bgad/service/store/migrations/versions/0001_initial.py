"""Create all tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create all tables and their indexes."""
    _create_versions()
    _create_images()
    _create_scores()
    _create_reviews()
    _create_jobs()
    _create_events_and_tokens()


def _create_versions() -> None:
    op.create_table(
        "versions",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("checksum", sa.String(64), nullable=False),
        sa.Column("folder", sa.Text, nullable=False),
        sa.Column("parent", sa.Integer, sa.ForeignKey("versions.id"), nullable=True),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("rate", sa.Float, nullable=True),
        sa.Column("created", sa.Double, nullable=False),
        sa.UniqueConstraint("name", "checksum", name="uq_versions_name_checksum"),
    )


def _create_images() -> None:
    op.create_table(
        "images",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("sha256", sa.String(64), nullable=False, unique=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("width", sa.Integer, nullable=False),
        sa.Column("height", sa.Integer, nullable=False),
        sa.Column("received", sa.Double, nullable=False),
        sa.Column("dropped", sa.Double, nullable=True),
    )
    kept, dropped = sa.text("dropped IS NULL"), sa.text("dropped IS NOT NULL")
    op.create_index("ix_images_kept", "images", ["received", "id"], sqlite_where=kept, postgresql_where=kept)
    op.create_index("ix_images_dropped", "images", ["dropped"], sqlite_where=dropped, postgresql_where=dropped)
    op.create_table("leftovers", sa.Column("image", sa.Integer, sa.ForeignKey("images.id"), primary_key=True))


def _create_scores() -> None:
    op.create_table(
        "scores",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("image", sa.Integer, sa.ForeignKey("images.id"), nullable=False),
        sa.Column("version", sa.Integer, sa.ForeignKey("versions.id"), nullable=False),
        sa.Column("score", sa.Double, nullable=False),
        sa.Column("p_value", sa.Double, nullable=False),
        sa.Column("threshold", sa.Double, nullable=False),
        sa.Column("is_anomaly", sa.Boolean, nullable=False),
        sa.Column("distance", sa.Double, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("parts", sa.JSON, nullable=False),
        sa.Column("region", sa.JSON, nullable=True),
        sa.UniqueConstraint("image", "version", name="uq_scores_image_version"),
    )
    op.create_index("ix_scores_version_score", "scores", ["version", "score"])
    op.create_index("ix_scores_version_distance", "scores", ["version", "distance"])
    op.create_index("ix_scores_version_created", "scores", ["version", "created"])


def _create_reviews() -> None:
    op.create_table(
        "reviews",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("image", sa.Integer, sa.ForeignKey("images.id"), nullable=False),
        sa.Column("verdict", sa.String(10), nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("mask", sa.String(64), nullable=True),
        sa.Column("ignore", sa.String(64), nullable=True),
        sa.Column("who", sa.String(200), nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("last", sa.Boolean, nullable=False),
    )
    op.create_index("ix_reviews_image", "reviews", ["image"])


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("version", sa.Integer, sa.ForeignKey("versions.id"), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("progress", sa.Double, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("images", sa.JSON, nullable=False),
        sa.Column("result", sa.JSON, nullable=True),
        sa.Column("new_version", sa.Integer, sa.ForeignKey("versions.id"), nullable=True),
        sa.Column("who", sa.String(200), nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("ended", sa.Double, nullable=True),
    )


def _create_events_and_tokens() -> None:
    op.create_table(
        "events",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("who", sa.String(200), nullable=False),
        sa.Column("what", sa.String(40), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(200), nullable=False, unique=True),
        sa.Column("role", sa.String(10), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False, unique=True),
        sa.Column("created", sa.Double, nullable=False),
    )
