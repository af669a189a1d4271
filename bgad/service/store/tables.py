"""The tables of the workbench; `migrations/` creates them. All times are seconds since 1970, UTC."""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()

# A model keeps its name, and each teaching job adds a version, as does another precision of the same model card, whose
# scores are others. At most one version of a name is released.
versions = sa.Table(
    "versions",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.String(200), nullable=False),
    sa.Column("checksum", sa.String(64), nullable=False),  # of the model card
    sa.Column("folder", sa.Text, nullable=False),  # relative to the folder of the models
    sa.Column("parent", sa.Integer, sa.ForeignKey("versions.id"), nullable=True),
    sa.Column("state", sa.String(20), nullable=False),  # released, candidate, retired, discarded
    sa.Column("rate", sa.Float, nullable=True),  # false-reject rate set in the service; None: the model card's
    sa.Column("threshold", sa.Double, nullable=True),  # of that rate; None: the model card's, as in the scores
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("precision", sa.String(20), nullable=False, server_default="float32"),  # in which it scores
    sa.UniqueConstraint("name", "checksum", "precision", name="uq_versions_name_checksum_precision"),
)

images = sa.Table(
    "images",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("sha256", sa.String(64), nullable=False, unique=True),
    sa.Column("name", sa.Text, nullable=False),  # the client's file name
    sa.Column("width", sa.Integer, nullable=False),
    sa.Column("height", sa.Integer, nullable=False),
    sa.Column("received", sa.Double, nullable=False),
    sa.Column("dropped", sa.Double, nullable=True),  # when retention removed the file; None: the file is kept
)
_kept, _gone = images.c.dropped.is_(None), images.c.dropped.is_not(None)
sa.Index("ix_images_kept", images.c.received, images.c.id, sqlite_where=_kept, postgresql_where=_kept)
sa.Index("ix_images_dropped", images.c.dropped, sqlite_where=_gone, postgresql_where=_gone)

# Dropped images whose files may still exist.
leftovers = sa.Table(
    "leftovers", metadata, sa.Column("image", sa.Integer, sa.ForeignKey("images.id"), primary_key=True)
)

# The sweeps of retention: an image is dropped only if it was due in a sweep a grace period ago.
sweeps = sa.Table(
    "sweeps",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("before", sa.Double, nullable=False),  # images that came earlier were due
)

# A score keeps the threshold and the decision that the client was told. What counts now follows from the score and from
# the threshold of its version, so that a new threshold changes no score. So does whether a region stands out, from the
# maximum of the map and the version's map threshold.
scores = sa.Table(
    "scores",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("image", sa.Integer, sa.ForeignKey("images.id"), nullable=False),
    sa.Column("version", sa.Integer, sa.ForeignKey("versions.id"), nullable=False),
    sa.Column("score", sa.Double, nullable=False),
    sa.Column("p_value", sa.Double, nullable=False),
    sa.Column("threshold", sa.Double, nullable=False),  # as sent
    sa.Column("is_anomaly", sa.Boolean, nullable=False),  # as sent
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("parts", sa.JSON, nullable=False),  # by name; their sum is `score`
    sa.Column("region", sa.JSON(none_as_null=True), nullable=True),  # as sent: left, top, right, bottom
    sa.Column("map_max", sa.Double, nullable=True),  # of the anomaly map; null in rows from before the column
    sa.UniqueConstraint("image", "version", name="uq_scores_image_version"),
)
sa.Index("ix_scores_version_score", scores.c.version, scores.c.score)
sa.Index("ix_scores_version_created", scores.c.version, scores.c.created)
CURRENT_THRESHOLD = sa.func.coalesce(versions.c.threshold, scores.c.threshold)
CURRENT_IS_ANOMALY = scores.c.score > CURRENT_THRESHOLD  # in queries that join `versions`

# Reviews are never changed or deleted: the last review of an image counts, the others are its history.
reviews = sa.Table(
    "reviews",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("image", sa.Integer, sa.ForeignKey("images.id"), nullable=False),
    sa.Column("verdict", sa.String(10), nullable=False),  # good, bad, unsure, withdrawn
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("mask", sa.String(64), nullable=True),  # sha256 of a PNG that marks the defect
    sa.Column("ignore", sa.String(64), nullable=True),  # sha256 of a PNG that marks pixels to ignore
    sa.Column("who", sa.String(200), nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("last", sa.Boolean, nullable=False),  # whether it is the last review of its image
)
sa.Index("ix_reviews_image", reviews.c.image)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("kind", sa.String(20), nullable=False),
    sa.Column("name", sa.String(200), nullable=False),  # name of the model
    sa.Column("version", sa.Integer, sa.ForeignKey("versions.id"), nullable=False),  # version that the job starts from
    sa.Column("state", sa.String(20), nullable=False),  # queued, running, done, failed, cancelled, interrupted
    sa.Column("progress", sa.Double, nullable=False),  # 0 to 1
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("images", sa.JSON, nullable=False),  # ids of the images to learn from
    sa.Column("result", sa.JSON, nullable=True),
    sa.Column("new_version", sa.Integer, sa.ForeignKey("versions.id"), nullable=True),  # version that the job made
    sa.Column("who", sa.String(200), nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("ended", sa.Double, nullable=True),
)

events = sa.Table(
    "events",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("who", sa.String(200), nullable=False),
    sa.Column("what", sa.String(40), nullable=False),
    sa.Column("name", sa.String(200), nullable=False),  # name of the model, or empty
    sa.Column("detail", sa.Text, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("image", sa.Integer, nullable=True),  # id of the image that the event is about
)

tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.String(200), nullable=False, unique=True),
    sa.Column("role", sa.String(10), nullable=False),  # score, review, admin
    sa.Column("hash", sa.String(64), nullable=False, unique=True),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("models", sa.JSON(none_as_null=True), nullable=True),  # names of models; None: all
    sa.Column("expires", sa.Double, nullable=True),
    sa.Column("used", sa.Double, nullable=True),  # when it was used last, to the hour
)

# The tokens with the role score that sent an image: they see its maps.
senders = sa.Table(
    "senders",
    metadata,
    sa.Column("image", sa.Integer, sa.ForeignKey("images.id"), primary_key=True),
    sa.Column("token", sa.String(200), primary_key=True),
)
