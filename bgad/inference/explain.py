"""Why an image was rejected, in words, from the parts of its score and the region that stands out in its anomaly map.

A region stands out where the map exceeds the map threshold, that is, where a contour is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping

import cc3d
import numpy as np

from bgad.types import Box, FloatArray, Shape

REGION = "a region stands out"
WHOLE_IMAGE = "the image as a whole is unusual; no region stands out"
REGION_AND_IMAGE = "a region stands out, and the image as a whole is unusual"
HIGH_MAP = "the anomaly map is higher than on good parts; no region stands out"
KNOWN = "resembles known defects"
TOGETHER = "no single part stands out, but together they exceed the threshold"
SLIGHTLY = "the score exceeds the threshold, but nothing stands out"


def explain(limits: Mapping[str, float], is_anomaly: bool, parts: Mapping[str, float], *, has_region: bool) -> str:
    """Return why an image is called anomalous; empty where it is not.

    `limits` are those of the model card. A part stands out where it exceeds its limit, which good parts keep but for
    the false-reject rate that the model was trained with. `has_region` says whether the map exceeds its threshold.

    >>> explain({"map": 1.0, "image": 2.0}, True, {"map": 1.5, "image": 0.1, "known": 0.0}, has_region=True)
    'a region stands out'
    """
    if not is_anomaly:
        return ""
    above = {name for name, limit in limits.items() if parts[name] > limit}
    sentences = []
    if has_region:
        sentences.append(REGION_AND_IMAGE if "image" in above else REGION)
    elif "image" in above:
        sentences.append(WHOLE_IMAGE)
    elif "map" in above:
        sentences.append(HIGH_MAP)
    if "known" in above:
        sentences.append(KNOWN)
    return "; ".join(sentences) or (TOGETHER if len(limits) > 1 else SLIGHTLY)


def region_at_peak(anomaly_map: FloatArray, threshold: float) -> Box | None:
    """Return the bounding box of the connected pixels above a threshold around the map's maximum; None without any.

    >>> anomaly_map = np.zeros((4, 6), np.float32); anomaly_map[1:3, 2:5] = 2
    >>> region_at_peak(anomaly_map, 1.0), region_at_peak(anomaly_map, 3.0)
    ((2, 1, 5, 3), None)
    """
    peak = np.unravel_index(int(anomaly_map.argmax()), anomaly_map.shape)
    if not anomaly_map[peak] > threshold:
        return None
    regions = cc3d.connected_components((anomaly_map > threshold).astype(np.uint8), connectivity=8)
    inside = regions == regions[peak]
    rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def scale_region(region: Box | None, shape: Shape, target: Shape) -> Box | None:
    """Return a region of an image of one shape in the pixels of another; pixels that it touches belong to it.

    >>> scale_region((2, 1, 5, 3), (4, 6), (8, 9))
    (3, 2, 8, 6)
    """
    if region is None or shape == target:
        return region
    left, top, right, bottom = region
    (height, width), (target_height, target_width) = shape, target
    return (
        left * target_width // width,
        top * target_height // height,
        -(-right * target_width // width),
        -(-bottom * target_height // height),
    )
