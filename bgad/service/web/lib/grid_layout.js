// Layout of a grid of cells, of which only the visible ones exist. Nothing here touches the page.

const MIN_CELL_WIDTH = 172; // pixels
const MIN_COLUMNS = 2;
const GAP = 10;
const CAPTION_HEIGHT = 68; // below the square thumbnail
const SPARE_ROWS = 3; // drawn above and below the visible ones

export class GridLayout {
  /**
   * @param {number} width of the grid
   * @param {number} count of the cells
   */
  constructor(width, count) {
    this.count = count;
    this.columns = Math.max(MIN_COLUMNS, Math.floor((width + GAP) / (MIN_CELL_WIDTH + GAP)));
    this.cellWidth = Math.floor((width - GAP * (this.columns - 1)) / this.columns);
    this.cellHeight = this.cellWidth + CAPTION_HEIGHT;
    this.rowHeight = this.cellHeight + GAP;
    this.height = Math.max(0, Math.ceil(count / this.columns) * this.rowHeight - GAP);
  }

  /**
   * Returns the upper left corner of a cell.
   * @param {number} index
   */
  position(index) {
    const column = index % this.columns;
    return { x: column * (this.cellWidth + GAP), y: Math.floor(index / this.columns) * this.rowHeight };
  }

  /**
   * Returns the indices of the cells to draw: from the first to just before the end.
   * @param {number} scrollTop
   * @param {number} viewHeight
   */
  visibleRange(scrollTop, viewHeight) {
    const firstRow = Math.max(0, Math.floor(scrollTop / this.rowHeight) - SPARE_ROWS);
    const endRow = Math.ceil((scrollTop + viewHeight) / this.rowHeight) + SPARE_ROWS;
    return { first: firstRow * this.columns, end: Math.min(this.count, endRow * this.columns) };
  }

  /**
   * Returns the scroll position, nearest to the present one, at which a cell is fully visible.
   * @param {number} index
   * @param {number} scrollTop
   * @param {number} viewHeight
   */
  scrollTo(index, scrollTop, viewHeight) {
    const top = this.position(index).y;
    const bottom = top + this.cellHeight;
    if (top < scrollTop) return top;
    return bottom > scrollTop + viewHeight ? bottom - viewHeight : scrollTop;
  }
}
