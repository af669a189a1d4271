"""Seeds an empty workbench with a stream as of a line: test images of a model whose data set lies beside it, as after
`bgad demo`, mostly normal ones with a few anomalies among them."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from bgad.artifact import folder as model_folder
from bgad.errors import BgadError, ImageError, first_line
from bgad.service.errors import BusyError
from bgad.service.folders import Folders
from bgad.service.store.versions import Version
from bgad.service.workbench import Workbench
from bgad.types import GOOD

NORMALS_PER_ANOMALY = 5

logger = logging.getLogger(__name__)

T = TypeVar("T")


def seed_test_images(workbench: Workbench) -> threading.Thread:
    """Score, in a thread, a stream of test images of every model that has scored nothing yet."""

    def work() -> None:
        for name in workbench.registry.names():
            try:
                _seed(workbench, name)
            except BusyError:  # the service is being stopped
                return
            except (BgadError, OSError, SQLAlchemyError) as error:  # the next model may succeed
                logger.warning("no test images of %s are scored: %s", name, first_line(error))

    thread = threading.Thread(target=work, name="demo seed", daemon=True)
    thread.start()
    return thread


def _seed(workbench: Workbench, name: str) -> None:
    version = workbench.store.versions.released(name)
    if workbench.store.scores.count(version.id):
        return
    for path in stream_of_tests(workbench.folders, version):
        try:
            workbench.score(name, path.read_bytes(), path.parent.name + "-" + path.name, patient=True)
        except (ImageError, OSError) as error:
            logger.warning("%s: %s", path, error)


def stream_of_tests(folders: Folders, version: Version) -> list[Path]:
    """Return test images of a version's split that exist in the folder of data sets, in the order of a stream.

    All normal images are in it, and one anomaly after every NORMALS_PER_ANOMALY of them, of each defect class in turn.
    A stream that is half anomalies would be a reason for an alarm of the drift test.
    """
    card = model_folder.read(folders.models / version.folder)
    root = folders.data / Path(card.data.name).name
    tests = [image for image in card.split["images"] if image["role"] == "test" and not image.get("box")]
    normals = _existing(root, folders.data, [image for image in tests if image["defect"] == GOOD])
    anomalies = _existing(root, folders.data, _by_turns([image for image in tests if image["defect"] != GOOD]))
    return list(_mix(normals, anomalies)) or anomalies


def _by_turns(images: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Order anomalies so that the defect classes take turns."""
    classes = {image["defect"]: [one for one in images if one["defect"] == image["defect"]] for image in images}
    columns = itertools.zip_longest(*classes.values())
    return [image for column in columns for image in column if image is not None]


def _mix(normals: Sequence[T], anomalies: Sequence[T]) -> Iterator[T]:
    """Yield all normals, with an anomaly after every NORMALS_PER_ANOMALY as long as there are any.

    >>> "".join(_mix("nnnnnnnnnnn", "abc"))
    'nnnnnannnnnbn'
    """
    rest = iter(anomalies)
    for number, normal in enumerate(normals, 1):
        yield normal
        if number % NORMALS_PER_ANOMALY == 0:
            yield from itertools.islice(rest, 1)


def _existing(root: Path, data: Path, images: Sequence[dict[str, Any]]) -> list[Path]:
    """Return the files of images that exist within the folder of data sets."""
    paths = [(root / image["name"]).resolve() for image in images]
    return [path for path in paths if path.is_relative_to(data.resolve()) and path.is_file()]
