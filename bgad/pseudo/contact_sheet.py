"""Contact sheet of pseudo anomalies, for a look at them before training."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from bgad.errors import DataError
from bgad.io import images, render
from bgad.pseudo.generate import PseudoAnomaly
from bgad.pseudo.rpag import fit_mask

OUTLINE = (230, 20, 90)


def contact_sheet(anomalies: Iterable[PseudoAnomaly], columns: int = 6) -> npt.NDArray[np.uint8]:
    """Draw pseudo anomalies on one page, each with the outline of its mask and a caption."""
    width, gap, line = 216, 12, 14
    font = ImageFont.load_default(size=11)
    cells: list[tuple[Image.Image, list[str]]] = []
    for image, mask, caption in anomalies:
        size = (max(1, round(width * mask.shape[0] / mask.shape[1])), width)
        drawn = render.outline(images.fit(image, size), fit_mask(mask, size), OUTLINE)
        cells.append((Image.fromarray(drawn), textwrap.wrap(caption, 36)))
    if not cells:
        raise DataError("a contact sheet needs at least one pseudo anomaly: ask for one or more")
    columns = min(columns, len(cells))
    rows = -(-len(cells) // columns)
    cell_height = max(thumbnail.height + gap // 2 + line * len(lines) for thumbnail, lines in cells)
    extent = (gap + columns * (width + gap), gap + rows * (cell_height + gap))
    page = Image.new("RGB", extent, (246, 246, 244))
    draw = ImageDraw.Draw(page)
    for index, (thumbnail, lines) in enumerate(cells):
        x, y = gap + index % columns * (width + gap), gap + index // columns * (cell_height + gap)
        page.paste(thumbnail, (x, y))
        for number, text in enumerate(lines):
            draw.text((x, y + thumbnail.height + gap // 2 + number * line), text, fill=(40, 40, 40), font=font)
    return np.asarray(page)
