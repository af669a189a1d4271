"""The command `bgad manifest`."""

from __future__ import annotations

import argparse
from typing import Any

from bgad.cli import console
from bgad.cli.options import add_command, number


def add_manifest(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "manifest",
        _manifest,
        "List the images of an archive in a Parquet file, which `bgad predict --cluster` takes.",
        "The file has the columns id, uri, size and sha256. INPUT may be on another file system, such as\n"
        "s3://bucket/images. Needs bgad[ray].\n\n"
        "examples:\n  bgad manifest /archive/2026 --out 2026.parquet\n"
        "  bgad manifest s3://plant/line-4 --out line-4.parquet --hash",
    )
    parser.add_argument("input", metavar="INPUT", help="a folder, a glob pattern, or a manifest (.parquet, .csv)")
    parser.add_argument("--out", required=True, metavar="FILE", help="the Parquet file to write, or its URI")
    parser.add_argument("--hash", action="store_true", help="read every image and add its sha256")
    parser.add_argument(
        "--threads", type=number(int, 1), default=16, metavar="N", help="images read side by side (default 16)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")


def _manifest(arguments: argparse.Namespace) -> int:
    from bgad.cluster import listing, uris

    out = uris.absolute(arguments.out)
    with console.progress() as progress:
        rows = listing.write_file(
            uris.absolute(arguments.input),
            out,
            hashes=arguments.hash,
            threads=arguments.threads,
            overwrite=arguments.overwrite,
            progress=progress,
        )
    console.say(f"{rows} images are listed in {uris.redact(arguments.out)}")
    return 0
