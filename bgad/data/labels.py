"""The words that folders and manifests use for normal and anomalous images."""

from __future__ import annotations

NORMAL_NAMES = frozenset({"good", "ok", "normal", "no"})
ANOMALOUS_NAMES = frozenset({"bad", "ko", "defect", "defective", "anomaly", "anomalous", "yes", "broken"})
UNNAMED_DEFECT = "bad"  # the defect class of an anomaly whose class is not stated
