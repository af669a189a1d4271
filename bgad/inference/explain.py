"""Why an image was rejected, in words, from the parts of its score and its anomaly map."""

from __future__ import annotations

from collections.abc import Mapping

import cc3d
import numpy as np

from bgad.artifact.card import Card
from bgad.types import Box, FloatArray

ONE_REGION = "one region stands out"
WHOLE_IMAGE = "the image as a whole is unusual; no region stands out"
REGION_AND_IMAGE = "one region stands out, and the image as a whole is unusual"
KNOWN = "resembles known defects"
TOGETHER = "no single part stands out, but together they exceed the threshold"


def explain(
    card: Card, is_anomaly: bool, parts: Mapping[str, float], anomaly_map: FloatArray
) -> tuple[str, Box | None]:
    """Return why an image is called anomalous, and the region that stands out if there is one.

    A part stands out where it exceeds the limit that it keeps on calibration normals, at the model's false-reject rate.
    """
    if not is_anomaly:
        return "", None
    above = {part.name for part in card.score_parts if parts[part.name] > part.limit}
    region = outstanding_region(anomaly_map, card.map.boundary) if "map" in above else None
    sentences = []
    if region is not None:
        sentences.append(REGION_AND_IMAGE if "image" in above else ONE_REGION)
    elif "image" in above:
        sentences.append(WHOLE_IMAGE)
    if "known" in above:
        sentences.append(KNOWN)
    return "; ".join(sentences) or TOGETHER, region


def outstanding_region(anomaly_map: FloatArray, boundary: float) -> Box | None:
    """Return the bounding box of the connected pixels around the map's maximum that lie beyond the boundary.

    >>> anomaly_map = np.zeros((4, 6), np.float32); anomaly_map[1:3, 2:5] = 2
    >>> outstanding_region(anomaly_map, 1.0), outstanding_region(anomaly_map, 3.0)
    ((2, 1, 5, 3), None)
    """
    beyond = anomaly_map > boundary
    peak = np.unravel_index(int(anomaly_map.argmax()), anomaly_map.shape)
    if not beyond[peak]:
        return None
    regions = cc3d.connected_components(beyond.astype(np.uint8), connectivity=8)
    rows, columns = np.nonzero(regions == regions[peak])
    return int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1
