"""Seeds an empty workbench: scores the test images of a model whose data set lies beside it, as after `bgad demo`."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from bgad.artifact import folder as model_folder
from bgad.errors import BgadError, ImageError, first_line
from bgad.service.errors import BusyError
from bgad.service.folders import Folders
from bgad.service.store.versions import Version
from bgad.service.workbench import Workbench

logger = logging.getLogger(__name__)


def seed_test_images(workbench: Workbench) -> threading.Thread:
    """Score, in a thread, the test images of every model that has scored nothing yet."""

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
    for path in split_test_images(workbench.folders, version):
        try:
            workbench.score(name, path.read_bytes(), path.parent.name + "-" + path.name, patient=True)
        except (ImageError, OSError) as error:
            logger.warning("%s: %s", path, error)


def split_test_images(folders: Folders, version: Version) -> list[Path]:
    """Return the test images of a version's split that exist in the folder of data sets."""
    card = model_folder.read(folders.models / version.folder)
    root = folders.data / Path(card.data.name).name
    data = folders.data.resolve()
    names = [image["name"] for image in card.split["images"] if image["role"] == "test" and not image.get("box")]
    paths = [(root / name).resolve() for name in names]
    return [path for path in paths if path.is_relative_to(data) and path.is_file()]
