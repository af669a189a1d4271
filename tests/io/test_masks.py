from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bgad.io.masks import defect_cells, resize_mask
from bgad.types import BoolArray


def box(shape: tuple[int, int], rows: slice, columns: slice) -> BoolArray:
    mask = np.zeros(shape, bool)
    mask[rows, columns] = True
    return mask


@pytest.mark.parametrize(
    ("mask", "grid", "expected"),
    [
        (box((8, 8), slice(0, 4), slice(4, 8)), (2, 2), [1]),  # one cell, all of it
        (box((8, 8), slice(0, 4), slice(2, 8)), (2, 2), [0, 1]),  # exactly half of the left cell
        (box((8, 8), slice(0, 4), slice(3, 8)), (2, 2), [1]),  # a quarter of it
        (box((8, 8), slice(None), slice(None)), (2, 2), [0, 1, 2, 3]),
        (box((6, 4), slice(4, 6), slice(0, 2)), (3, 2), [4]),  # neither mask nor grid is square
        # cells of 2.5 pixels: the second row of cells spans pixels 2.5 to 5
        (box((10, 10), slice(0, 5), slice(0, 5)), (4, 4), [0, 1, 4, 5]),
        (box((10, 10), slice(0, 3), slice(0, 10)), (4, 4), [0, 1, 2, 3]),  # a fifth of the second row
        (box((10, 10), slice(0, 4), slice(0, 10)), (4, 4), [0, 1, 2, 3, 4, 5, 6, 7]),  # three fifths of it
        (box((1, 38), slice(0, 1), slice(19, 33)), (2, 3), [1, 2, 4, 5]),  # half, but for rounding
        # a grid finer than the mask
        (box((2, 2), slice(0, 1), slice(1, 2)), (4, 4), [2, 3, 6, 7]),
    ],
)
def test_half_covered_cells_by_hand(mask: BoolArray, grid: tuple[int, int], expected: list[int]) -> None:
    assert defect_cells(mask, grid).tolist() == expected


def test_a_tiny_defect_keeps_the_cells_it_covers_most() -> None:
    assert defect_cells(box((64, 64), slice(63, 64), slice(0, 1)), (4, 4)).tolist() == [12]
    two = box((64, 64), slice(0, 1), slice(0, 1)) | box((64, 64), slice(40, 41), slice(40, 41))
    assert defect_cells(two, (4, 4)).tolist() == [0, 10]  # equal: both
    uneven = box((64, 64), slice(0, 1), slice(0, 1)) | box((64, 64), slice(40, 42), slice(40, 41))
    assert defect_cells(uneven, (4, 4)).tolist() == [10]
    assert defect_cells(box((64, 64), slice(15, 17), slice(20, 21)), (4, 4)).tolist() == [1, 5]  # on an edge


def test_a_small_defect_beside_a_large_one_does_not_count() -> None:
    mask = box((64, 64), slice(0, 16), slice(0, 16)) | box((64, 64), slice(60, 62), slice(60, 62))
    assert defect_cells(mask, (4, 4)).tolist() == [0]


def test_an_empty_mask_has_no_cells() -> None:
    found = defect_cells(np.zeros((10, 12), bool), (3, 3))
    assert found.dtype == np.int64
    assert found.size == 0


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(bool, st.tuples(st.integers(1, 12), st.integers(1, 12))), st.tuples(st.integers(1, 6), st.integers(1, 6))
)
def test_against_counting_on_a_finer_raster(mask: BoolArray, grid: tuple[int, int]) -> None:
    """Each pixel cut into grid pieces and each cell into as many as there are pixels: counting is then exact."""
    fine = mask.repeat(grid[0], 0).repeat(grid[1], 1)  # (h * gh, w * gw)
    count = fine.reshape(grid[0], mask.shape[0], grid[1], mask.shape[1]).sum((1, 3)).ravel()
    found = defect_cells(mask, grid)
    if not mask.any():
        assert found.size == 0
        return
    half = 2 * count >= mask.size
    expected = np.flatnonzero(half if half.any() else count == count.max())
    assert found.tolist() == expected.tolist()


def test_resize_mask() -> None:
    mask = box((4, 4), slice(1, 2), slice(2, 3))
    np.testing.assert_array_equal(resize_mask(mask, (8, 8)), mask.repeat(2, 0).repeat(2, 1))
