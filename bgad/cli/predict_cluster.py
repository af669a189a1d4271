"""`bgad predict --cluster`: score an archive on a Ray cluster, and sum up its output."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bgad.cli import console
from bgad.cli.options import load_scorer, number
from bgad.cluster import uris
from bgad.errors import ConfigError

if TYPE_CHECKING:
    from bgad.cluster.archive import Estimate, Options
    from bgad.cluster.job import Job

EXIT_BAD_IMAGES, EXIT_INTERRUPTED = 1, 130
OVERLAYS = ("none", "anomalous", "all")
_NOT_WITH_CLUSTER = ("overwrite", "no_overlays", "json")
_ONLY_WITH_CLUSTER = ("workers", "gpus_per_worker", "shard_images", "dry_run", "overlays")


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add the options of a job on a cluster."""
    group = parser.add_argument_group("cluster (needs bgad[ray])")
    group.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="score an archive on a Ray cluster: HOST:PORT, auto (the one that runs here) or local (start one here); "
        "PATH is one folder, pattern or manifest (.parquet, .csv), and --out a folder or a URI such as s3://bucket/out",
    )
    group.add_argument(
        "--workers",
        type=number(int, 1),
        metavar="N",
        help="default: as many as the CPUs and GPUs of the cluster can run",
    )
    group.add_argument("--gpus-per-worker", type=number(float, 0), metavar="N", help="such as 0.5 (default 0)")
    group.add_argument(
        "--shard-images",
        type=number(int, 1),
        metavar="N",
        help="images in a file of the output, fixed by the first run (default 1000)",
    )
    group.add_argument("--overlays", choices=OVERLAYS, help="images whose overlays and maps to write (default none)")
    group.add_argument(
        "--dry-run",
        action="store_true",
        help="write nothing; print shards, expected hours and memory from a short measurement",
    )
    group.add_argument(
        "--report", metavar="URI", help="sum up the output of a job: counts, histogram, worst images, drift"
    )


def refuse_without_cluster(arguments: argparse.Namespace) -> None:
    """Raise ConfigError where an option or an output of a cluster is given without one."""
    given = [name for name in _ONLY_WITH_CLUSTER if getattr(arguments, name)]
    if given:
        raise ConfigError(f"--{given[0].replace('_', '-')} needs --cluster ADDRESS")
    if arguments.out and uris.is_uri(arguments.out):
        raise ConfigError(
            f"--out {uris.redact(arguments.out)}: a URI needs --cluster ADDRESS, such as --cluster local; "
            "without a cluster, give a folder"
        )


def _refuse_with_cluster(arguments: argparse.Namespace) -> None:
    """Raise ConfigError where arguments of a run on this machine are given with a cluster."""
    given = [name for name in _NOT_WITH_CLUSTER if getattr(arguments, name)]
    if given:
        raise ConfigError(
            f"--{given[0].replace('_', '-')} is not for --cluster: rows go to --out, --overlays says what is drawn, "
            "and another --out scores again"
        )
    if arguments.contour and arguments.overlays in (None, "none"):
        raise ConfigError("--contour is for overlays: give --overlays all or anomalous")
    if len(arguments.paths) != 1 or not arguments.out:
        raise ConfigError("--cluster takes one PATH (a folder, a pattern or a manifest) and --out FOLDER or URI")
    if arguments.threads not in (None, 1):
        raise ConfigError("a worker of a cluster has one thread: leave out --threads, and use --workers")


def predict_on_cluster(arguments: argparse.Namespace) -> int:
    """Run `bgad predict --cluster`."""
    from bgad.cluster.connection import check

    _refuse_with_cluster(arguments)
    check(arguments.cluster)
    from bgad.cluster import archive

    options = _options(arguments)
    arguments.threads, arguments.device = 1, "cpu" if not options.gpus_per_worker else arguments.device
    arguments.batch = None  # that of the workers, which may have other devices than this machine, is in the options
    scorer = load_scorer(arguments)
    files = archive.model_files(arguments.model, scorer)
    if arguments.dry_run:
        _print_estimate(archive.estimate(scorer, files, arguments.paths[0], arguments.out, options))
        return 0
    with archive.exclusive(arguments.out):
        job = archive.prepare(scorer, arguments.paths[0], arguments.out, options)
        with console.progress() as progress, console.stop_on_interrupt(terminate=True) as stop, stop.honour():
            totals = archive.run(job, files, options, progress, stop)
    return _conclude(job, totals.rows)


def _conclude(job: Job, scored: int) -> int:
    """Say what a run has done, of which `scored` images are new; returns the exit code."""
    from bgad.cluster.job import SCORES

    finished = job.finished()
    if finished.missing:
        console.say(f"stopped; {len(finished.missing)} of {job.shards} shards are left: the same command continues")
        return EXIT_INTERRUPTED
    images = f"{job.rows} image{'' if job.rows == 1 else 's'}"
    summary = f"{finished.failed} of {images} could not be scored" if finished.failed else f"{images} scored"
    earlier = f", {job.rows - scored} of them by an earlier run" if scored < job.rows else ""
    out = uris.redact(job.out)
    console.say(f"{summary}{earlier}; rows are in {uris.join(out, SCORES)}; next: bgad predict --report {out}")
    return EXIT_BAD_IMAGES if finished.failed else 0


def _print_estimate(estimate: Estimate) -> None:
    console.say(
        f"images: {estimate.images}, of which to score: {estimate.unfinished}; shards: {estimate.shards}\n"
        f"one worker on this machine scores {estimate.images_per_second:.1f} images a second "
        f"and takes {estimate.worker_mb:.0f} MB\n"
        f"{estimate.workers} workers like it need {estimate.hours:.2g} hours"
    )


def report(arguments: argparse.Namespace) -> int:
    """Run `bgad predict --report`."""
    from bgad.cli.tables import archive_report
    from bgad.cluster.report import summarise

    console.stdout_console().print(archive_report(summarise(arguments.report)))
    return 0


def _options(arguments: argparse.Namespace) -> Options:
    from bgad.cluster.archive import Options
    from bgad.inference.batch import THRESHOLD

    gpus = arguments.gpus_per_worker or 0.0
    device = arguments.device if arguments.device != "auto" else "cuda" if gpus else "cpu"
    return Options(
        cluster=arguments.cluster,
        workers=arguments.workers,
        gpus_per_worker=gpus,
        shard_images=arguments.shard_images,
        device=device,
        overlays=arguments.overlays or "none",
        contour=arguments.contour or THRESHOLD,
        rate=arguments.false_reject_rate,
        batch=arguments.batch,
    )
