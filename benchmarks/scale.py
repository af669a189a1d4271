"""What an archive takes, from measured figures: `python -m benchmarks.scale --images 1e9` (prints a Markdown table).

Figures with a command come from `python -m benchmarks.cluster`. Prices and the size of an image are assumptions: give
your own.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

SECONDS_AN_HOUR, GB = 3600.0, 1e9
LISTED_AT_ONCE = 1000  # objects in one answer of an object store


@dataclass(frozen=True)
class Costs:
    """Measured costs, and assumptions about images and prices."""

    ms_per_image: float  # of one worker on one core
    row_bytes: float  # of the output and of the manifest, for each image
    image_bytes: float
    shard_images: int
    start_seconds: float  # of a worker
    core_hour: float  # price
    thousand_reads: float  # price of requests to the object store
    thousand_writes: float
    list_seconds: float  # of one request that lists LISTED_AT_ONCE objects


def rows(images: float, cores: int, costs: Costs) -> list[tuple[str, str]]:
    """Return what is needed, line by line, as name and text."""
    core_hours = images * costs.ms_per_image / 1000 / SECONDS_AN_HOUR
    hours = core_hours / cores + costs.start_seconds / SECONDS_AN_HOUR
    shards = images / costs.shard_images
    network = images * costs.image_bytes / GB
    requests = images / 1000 * costs.thousand_reads + 2 * shards / 1000 * costs.thousand_writes
    listing = images / LISTED_AT_ONCE * costs.list_seconds / SECONDS_AN_HOUR
    markers = shards / LISTED_AT_ONCE * costs.list_seconds
    return [
        ("core-hours", f"{core_hours:,.0f}"),
        (f"hours with {cores:,} cores", f"{hours:,.1f}"),
        ("shards, and as many markers", f"{shards:,.0f}"),
        ("shards finished a second", f"{shards / (hours * SECONDS_AN_HOUR):,.1f}"),
        ("read over the network", f"{network:,.0f} GB, {network * 8 / (hours * SECONDS_AN_HOUR):,.1f} Gbit/s"),
        ("manifest and scores", f"{images * costs.row_bytes / GB:,.1f} GB"),
        ("listing the images, one request after the other", f"{listing:,.1f} hours"),
        ("listing the markers when a run continues", f"{markers:,.0f} seconds"),
        ("price of the cores", f"{core_hours * costs.core_hour:,.0f}"),
        ("price of the requests", f"{requests:,.0f}"),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=float, default=1e9, metavar="N")
    parser.add_argument("--cores", type=int, default=1000, metavar="N")
    parser.add_argument("--ms-per-image", type=float, default=20.3, metavar="MS", help="of one core (measured)")
    parser.add_argument("--row-bytes", type=float, default=90.0, metavar="N", help="manifest and scores (measured)")
    parser.add_argument("--image-kb", type=float, default=200.0, metavar="KB", help="of an image file (assumption)")
    parser.add_argument("--shard-images", type=int, default=1000, metavar="N")
    parser.add_argument("--start-seconds", type=float, default=8.2, metavar="S", help="of a worker (measured)")
    parser.add_argument("--core-hour", type=float, default=0.04, metavar="PRICE", help="assumption")
    parser.add_argument("--thousand-reads", type=float, default=0.0004, metavar="PRICE", help="assumption")
    parser.add_argument("--thousand-writes", type=float, default=0.005, metavar="PRICE", help="assumption")
    parser.add_argument("--list-seconds", type=float, default=0.1, metavar="S", help="of 1,000 objects (assumption)")
    arguments = vars(parser.parse_args())
    images, cores = arguments.pop("images"), arguments.pop("cores")
    costs = Costs(image_bytes=1000 * arguments.pop("image_kb"), **arguments)
    print(f"| {images:,.0f} images | |\n|---|---|")
    for name, value in rows(images, cores, costs):
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
