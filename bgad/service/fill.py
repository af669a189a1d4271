"""A first look: the queue of a model whose own test pictures lie beside it is filled with them."""

from __future__ import annotations

import threading
from pathlib import Path

from bgad import console, modelfile
from bgad.errors import BgadError
from bgad.service.store import Row, Wanted
from bgad.service.workbench import Workbench


def own_test_images(bench: Workbench) -> threading.Thread:
    """Score, beside everything else, the test pictures of models that have scored nothing yet and whose data set is
    below the folder of the models, as after `bgad demo`."""

    def work() -> None:
        for name in bench.names():
            version = bench.store.released(name)
            if bench.store.listed(Wanted(name, limit=1))[1]:
                continue
            for path in test_pictures(bench, version):
                try:
                    bench.score(name, path.read_bytes(), path.parent.name + "-" + path.name, patient=True)
                except (BgadError, OSError) as error:
                    console.warn(f"{path}: {error}")

    thread = threading.Thread(target=work, name="first look", daemon=True)
    thread.start()
    return thread


def test_pictures(bench: Workbench, version: Row) -> list[Path]:
    """Those of the split of a version, if they are below the folder of the models; the classes in turn."""
    card = modelfile.read(bench.models / version["folder"])
    root = Path(card.data["data"].get("root") or "/")
    inside = bench.models.resolve()
    if not root.resolve().is_relative_to(inside) or root.resolve() == inside:
        return []
    names = [image["name"] for image in card.split["images"] if image["role"] == "test" and not image.get("box")]
    places = [(root / name).resolve() for name in names]
    return [place for place in places if place.is_relative_to(inside) and place.is_file()]
