"""A first look: the queue of a model whose own test pictures lie beside it is filled with them."""

from __future__ import annotations

import threading
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from bgad.artifact import folder as model_folder
from bgad.cli import console
from bgad.errors import BgadError, ImageError
from bgad.service.scoring.batcher import BusyError
from bgad.service.store.store import Row
from bgad.service.workbench import Workbench


def own_test_images(bench: Workbench) -> threading.Thread:
    """Score, beside everything else, the test pictures of models that have scored nothing yet and whose data set is in
    the folder of data sets beside them, as after `bgad demo`."""

    def work() -> None:
        for name in bench.names():
            try:
                _fill(bench, name)
            except BusyError:  # the service is being stopped
                return
            except (BgadError, OSError, SQLAlchemyError) as error:  # the next one may do better
                console.warn(f"no first look at {name}: {str(error).splitlines()[0]}")

    thread = threading.Thread(target=work, name="first look", daemon=True)
    thread.start()
    return thread


def _fill(bench: Workbench, name: str) -> None:
    version = bench.store.released(name)
    if bench.store.count(version["id"]):
        return
    for path in test_pictures(bench, version):
        try:
            bench.score(name, path.read_bytes(), path.parent.name + "-" + path.name, patient=True)
        except (ImageError, OSError) as error:
            console.warn(f"{path}: {error}")


def test_pictures(bench: Workbench, version: Row) -> list[Path]:
    """Those of the split of a version that are in the folder of data sets."""
    card = model_folder.read(bench.models / version["folder"])
    root = bench.data / Path(card.data.name).name
    inside = bench.data.resolve()
    names = [image["name"] for image in card.split["images"] if image["role"] == "test" and not image.get("box")]
    places = [(root / name).resolve() for name in names]
    return [place for place in places if place.is_relative_to(inside) and place.is_file()]
