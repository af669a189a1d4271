"""A version is a model at a precision: its scores, threshold and drift test are of that precision."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

OLD, NEW = "uq_versions_name_checksum", "uq_versions_name_checksum_precision"
IDENTITY = ["name", "checksum", "precision"]
KEEP = "CREATE TEMP TABLE kept AS SELECT * FROM versions"
PUT_BACK = (
    "INSERT INTO versions (id, name, checksum, folder, parent, state, rate, threshold, created)"
    " SELECT id, name, checksum, folder, parent, state, rate, threshold, created FROM kept"
)


def upgrade() -> None:
    """Add the column; all earlier versions compute in float32."""
    if op.get_bind().dialect.name == "sqlite":
        _make_anew()
        return
    op.add_column("versions", _precision())
    op.drop_constraint(OLD, "versions")
    op.create_unique_constraint(NEW, "versions", IDENTITY)


def _precision() -> sa.Column[str]:
    return sa.Column("precision", sa.String(20), nullable=False, server_default="float32")


def _make_anew() -> None:
    """Make the table anew: SQLite drops no constraint. References to its rows are checked at the end."""
    op.execute("PRAGMA defer_foreign_keys=ON")
    op.execute(KEEP)
    op.drop_table("versions")
    op.create_table(
        "versions",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("checksum", sa.String(64), nullable=False),
        sa.Column("folder", sa.Text, nullable=False),
        sa.Column("parent", sa.Integer, sa.ForeignKey("versions.id"), nullable=True),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("rate", sa.Float, nullable=True),
        sa.Column("threshold", sa.Double, nullable=True),
        sa.Column("created", sa.Double, nullable=False),
        _precision(),
        sa.UniqueConstraint(*IDENTITY, name=NEW),
    )
    op.execute(PUT_BACK)
    op.execute("DROP TABLE kept")
