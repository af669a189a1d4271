"""Takes reviews of images: verdicts, notes and painted masks."""

from __future__ import annotations

from bgad.errors import ImageError
from bgad.io import images
from bgad.service.blobs import BlobKind, BlobStore
from bgad.service.errors import MissingError
from bgad.service.image_views import ImageViews
from bgad.service.scoring.decoding import DecodingBudget
from bgad.service.scoring.ingest import ImageLimits
from bgad.service.store.images import Image
from bgad.service.store.reviews import Review
from bgad.service.store.store import Store
from bgad.types import BoolArray


class Reviewing:
    """Stores reviews with their masks."""

    def __init__(
        self, store: Store, blobs: BlobStore, views: ImageViews, limits: ImageLimits, budget: DecodingBudget
    ) -> None:
        self._store, self._blobs, self._views, self._limits, self._budget = store, blobs, views, limits, budget

    def review(
        self,
        number: int,
        verdict: str,
        who: str,
        *,
        note: str = "",
        mask: bytes | None = None,
        ignore: bytes | None = None,
        model: str = "",
        seen: int | None = None,
    ) -> Review:
        """Store a verdict durably, with masks as PNGs of the image's size in which every pixel but black is marked.

        The history lists the review under `model`, or else under the model that scored the image last. `seen` is the id
        of the last review that the caller knows, 0 for none: ReviewChangedError if there is a newer one.
        """
        self._check_model(model)
        image = self._store.images.get_kept(number)
        with self._views.reading(number):
            self._blobs.sync(BlobKind.IMAGE, image.sha256)
        masks: dict[str, str] = {}
        for kind, content in (("mask", mask), ("ignore", ignore)):
            if content is not None and self._read_mask(kind, content, image).any():
                if kind == "mask" and verdict == "good":
                    raise ImageError("a good part has no defect: leave the mask out, or call it bad")
                masks[kind] = self._blobs.put(BlobKind.MASK, content)
        return self._store.reviews.add(
            number, verdict, who, note=note, mask=masks.get("mask"), ignore=masks.get("ignore"), model=model, seen=seen
        )

    def undo(self, number: int, who: str, model: str = "") -> Review:
        """Undo the last review of an image and return the review that takes its place."""
        self._check_model(model)
        return self._store.reviews.undo(number, who, model)

    def mask(self, number: int, kind: str) -> bytes:
        """Return the PNG of a review's `mask` or `ignore`."""
        review = self._store.reviews.get(number)
        name = review.mask if kind == "mask" else review.ignore
        if name is None:
            raise MissingError(f"no {kind} was painted with review {number}")
        return self._blobs.path(BlobKind.MASK, name).read_bytes()

    def _check_model(self, model: str) -> None:
        if model:  # the history must not list a review under a name that does not exist
            self._store.versions.released(model)

    def _read_mask(self, kind: str, content: bytes, image: Image) -> BoolArray:
        """Decode a mask; ImageError before anything is decoded if its header does not state the image's size."""
        if len(content) > self._limits.max_bytes:
            raise ImageError(f"the {kind} is larger than {self._limits.max_bytes} bytes")
        try:
            height, width = images.check_bytes(content, max_pixels=self._limits.max_pixels)
        except ImageError as error:
            raise ImageError(f"the {kind}: {str(error).partition(': ')[2]}") from error
        if (height, width) != (image.height, image.width):
            size = f"{width}x{height}"
            raise ImageError(f"the {kind} is {size}, the image {image.width}x{image.height}: make them equal")
        try:
            with self._budget.hold(height * width):
                return images.mask_from_png(content)
        except ImageError as error:
            raise ImageError(f"the {kind} is not a PNG that can be read") from error
