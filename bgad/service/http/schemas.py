"""The JSON of the API; its OpenAPI description is generated from these classes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from bgad.service.store.image_list import MAX_ID
from bgad.service.text import is_plain


def _plain(text: str) -> str:
    """Refuse characters that no database stores, and those that deceive a reader."""
    if not is_plain(text, lines=True):
        raise ValueError("it contains a character that is not valid text")
    return text


Text = Annotated[str, AfterValidator(_plain)]
Verdict = Literal["good", "bad", "unsure"]
Parts = Annotated[
    dict[str, float],
    Field(
        description="contributions that add up to the score: `map`, the highest values of the anomaly map; `image`, "
        "how unusual the image is as a whole; `known`, its resemblance to known anomalies"
    ),
]
Reason = Annotated[
    str | None,
    Field(
        description="in words, why the image is rejected; null if the present decision is normal, or if the model "
        "folder of the version is gone"
    ),
]
Region = Annotated[
    list[int] | None,
    Field(
        description="left, top, right and bottom, in pixels of the image, of the contour around the maximum of the "
        "anomaly map, whatever the decision; null if the map does not exceed the map threshold, or if the contour was "
        "not drawn when the image was scored"
    ),
]


class Row(BaseModel):
    """A schema that can be read from the attributes of a stored row."""

    model_config = ConfigDict(from_attributes=True)


class Problem(BaseModel):
    """An error in one line: what, where and what to do."""

    detail: str


class Version(Row):
    """One version of a model."""

    id: int
    checksum: str
    precision: str = Field(description="in which the version scores; another precision has other scores")
    state: Literal["released", "candidate", "retired", "discarded"]
    parent: int | None
    created: float = Field(description="seconds since 1970, UTC")


class Rescoring(Row):
    """How many earlier images the released version has rescored; 0 of 0 if no rescoring runs."""

    done: int
    total: int


class Model(BaseModel):
    """A model with its versions."""

    name: str
    version: Version = Field(description="the released version")
    versions: list[Version]
    threshold: float
    rate: float = Field(description="false-reject rate: the largest share of good parts that is rejected")
    map_threshold: float = Field(
        description="map value above which a contour is drawn; the share of good images that show any is at most `rate`"
    )
    guarantee: str
    calibration: int = Field(description="number of calibration normals behind the threshold")
    size: int = Field(description="side of the model's input in pixels")
    scored: int = Field(description="number of images that the released version has scored")
    rescoring: Rescoring = Field(description="progress of rescoring earlier images with the released version")


class Score(BaseModel):
    """The score of an image by the released version of a model."""

    image: int | None = Field(description="number of the image; null if it is not kept")
    kept: bool = Field(
        description="whether the image and its score are stored; false while the store does not answer: the score "
        "counts all the same, and the image may be sent again later"
    )
    name: str
    model: str
    version: int
    checksum: str
    precision: str = Field(description="in which the image was scored")
    score: float = Field(description="anomaly score; higher is more anomalous")
    p_value: float = Field(description="share of good parts with a score at least as high")
    threshold: float
    is_anomaly: bool
    decision: Literal["normal", "anomalous"]
    parts: Parts
    reason: Reason
    region: Region
    map: str | None = Field(description="path of the anomaly map; null if the image is not kept")
    overlay: str | None = Field(
        description="path of the image with its anomaly map as a heat map; null if the image is not kept"
    )


class Failure(BaseModel):
    """An image of a batch that could not be scored."""

    name: str
    error: str


class Batch(BaseModel):
    """The results of several images, in the order in which they were sent."""

    results: list[Score | Failure]


class ListedImage(Row):
    """An image in a list."""

    id: int
    name: str
    width: int
    height: int
    score: float
    p_value: float
    threshold: float
    is_anomaly: bool
    parts: Parts
    reason: Reason
    region: Region
    created: float
    verdict: Verdict | None
    note: str | None
    has_mask: bool = Field(description="whether the review marks the defect")
    review: int = Field(description="id of the last review, to pass on as `seen`; 0: nobody has reviewed the image")
    thumbnail: str


class ImageList(BaseModel):
    """A page of a list."""

    images: list[ListedImage]
    total: int
    as_of: str = Field(
        description="pass it on to get other pages of the same list. New images, reviews and releases do not change "
        "the pages. A new threshold does, and so does an image that is sent again if it had been dropped or if the "
        "newest come first"
    )
    position: int | None = Field(
        description="position of the image to find, from 0; null if the list does not contain it"
    )


class Changes(BaseModel):
    """What has changed since a list was requested."""

    new: int = Field(description="number of images scored since then that match the filters; 0 without `after`")
    latest: str = Field(description="differs from the last answer if anything was scored, reviewed or released")
    version: int = Field(description="the released version")
    threshold: float
    candidates: list[int] = Field(description="versions that wait to be released or discarded")
    jobs: list[int] = Field(description="jobs that wait or run")


class Lesson(Row):
    """An image with the verdict good or bad, which a model can learn from."""

    id: int
    name: str
    verdict: Literal["good", "bad"]
    has_mask: bool = Field(description="whether the review marks the defect")
    width: int
    height: int
    score: float | None = Field(description="by the released version; null if it has not scored the image")


class Review(BaseModel):
    """A person's review of an image."""

    id: int
    image: int
    verdict: Verdict | Literal["withdrawn"] = Field(description="withdrawn: the image counts as not reviewed")
    note: str
    who: str
    created: float
    mask: str | None = Field(description="path of the mask that marks the defect")
    ignore: str | None = Field(description="path of the mask of pixels to ignore")


class ReviewChanged(Problem):
    """Nothing was stored, because somebody else has reviewed the image meanwhile."""

    review: Review = Field(description="the review that counts now")


class NewReview(BaseModel):
    """A verdict with masks: PNGs of the image's size in base64, in which every pixel but black is marked."""

    model_config = ConfigDict(extra="forbid", strict=True)

    verdict: Verdict
    note: Text = Field("", max_length=2000)
    mask: str | None = Field(
        None, max_length=90_000_000, description="marks the defect; not allowed with the verdict good"
    )
    ignore: str | None = Field(None, max_length=90_000_000, description="marks pixels to ignore")
    model: Text = Field(
        "",
        max_length=200,
        description="model to list the review under in the history; by default the last to score the image",
    )
    seen: int | None = Field(
        None,
        ge=0,
        le=MAX_ID,
        description="id of the last review of the image that the caller has seen, 0 if it had none. If there is a "
        "newer one, the answer is 409 and nothing is stored. Without it, the review is stored whatever others said",
    )


class VersionScore(Row):
    """The score of an image by one version."""

    model: str
    version: int
    checksum: str
    precision: str = Field(description="in which the image was scored")
    score: float
    p_value: float
    threshold: float
    is_anomaly: bool
    parts: Parts
    reason: Reason
    region: Region
    limits: dict[str, float] | None = Field(
        description="of the parts that the version's score has: a part above its limit stands out; null if the model "
        "folder of the version is gone"
    )


class RecordedScore(VersionScore):
    """A recorded score of an image by one version, with the present decision and the one that the client was told."""

    created: float
    sent_threshold: float = Field(description="the threshold when the score was recorded")
    sent_is_anomaly: bool = Field(description="the decision by that threshold, which is what the client was told")


class ComputedScore(VersionScore):
    """A score that was computed for this answer and is not recorded."""

    calibration: int = Field(description="number of calibration normals behind the p-value")


class Neighbour(Row):
    """An image with a score close to another one's."""

    id: int
    name: str
    score: float
    is_anomaly: bool
    verdict: Verdict | None


class ImageDetail(BaseModel):
    """One image with all its scores and reviews."""

    id: int
    name: str
    width: int
    height: int
    received: float
    dropped: float | None = Field(description="when retention removed its file; null: the file is kept")
    scores: list[RecordedScore]
    reviews: list[Review]
    view: str = Field(description="path of the image as any browser shows it")
    neighbours: list[Neighbour]


class Taught(BaseModel):
    """Number of reviewed images in the training set or among the calibration normals of the version."""

    good: int
    bad: int


class Threshold(BaseModel):
    """Scores of calibration normals and reviewed images, and the guarantee of the threshold. The threshold of the k-th
    of the rates is the k-th highest of the calibration scores."""

    rate: float
    threshold: float
    calibration: list[float] = Field(description="scores of the calibration normals, ascending")
    good: list[float] = Field(description="scores of images with the verdict good that were not taught, ascending")
    bad: list[float] = Field(description="scores of images with the verdict bad that were not taught, ascending")
    taught: Taught = Field(description="numbers of reviewed images that are left out because they were taught")
    rates: list[float] = Field(description="false-reject rates that can be guaranteed, for k = 1, 2 and so on")
    bounds: list[float] = Field(description="upper confidence bounds on the true rate, for k = 1, 2 and so on")
    confidence: float = Field(description="confidence of the bounds")
    is_confident: bool = Field(
        description="whether a rate holds for the present set with that confidence, as its bound; else it is an "
        "average over such sets"
    )
    guarantee: str = Field(description="the guarantee of the present rate in words")


class NewRate(BaseModel):
    """A new false-reject rate."""

    model_config = ConfigDict(extra="forbid", strict=True)

    rate: float = Field(ge=1e-6, lt=1)


class Point(Row):
    """One score of a time series."""

    created: float
    score: float
    p_value: float
    is_anomaly: bool
    image: int


class Level(BaseModel):
    """The level of the drift test after an image."""

    number: int = Field(description="number of images that the test had seen")
    created: float
    level: float


class Alarm(BaseModel):
    """An alarm of the drift test."""

    number: int = Field(description="number of images that the test had seen")
    created: float
    image: int


class Driver(Point):
    """An image that contributed much to the level of the drift test."""

    name: str
    verdict: Verdict | None
    dropped: float | None = Field(description="when retention removed its file; null: the file is kept")
    side: Literal["high", "low"] = Field(
        description="whether its score lies in the higher or the lower half of the scores before it"
    )


class Bin(Row):
    """The scores of an hour or a day."""

    start: float
    end: float
    count: int
    flagged: float = Field(description="share of anomalous decisions")
    low: float = Field(description="5 % quantile of the scores")
    median: float = Field(description="median of the scores")
    high: float = Field(description="95 % quantile of the scores")


class DriftCause(BaseModel):
    """What the change behind an alarm looks like."""

    kind: Literal["defects", "imaging", "unclear"] = Field(
        description="`defects`: more images score above the threshold, the others as before; `imaging`: the images "
        "called normal have changed, too, or hardly any image is called normal any more"
    )
    text: str = Field(description="the same in words")
    images: int = Field(description="number of images behind the change")
    flagged: int = Field(description="number of them above the threshold")
    images_before: int = Field(description="number of images before the change, with the calibration normals")
    flagged_before: int = Field(description="number of those above the threshold")
    shift: float = Field(
        description="probability that an image below the threshold scores higher than one of those before; 0.5: as they"
    )


class DriftView(BaseModel):
    """The scores over time and the state of the drift test."""

    total: int = Field(description="number of scores")
    tested: int = Field(description="number of scores that the test has seen")
    every: Literal["hour", "day"]
    bins: list[Bin] = Field(description="the newest 2,000 that are not empty, oldest first")
    series: list[Point] = Field(description="the last scores, oldest first")
    levels: list[Level] = Field(description="at most 2,000: the highest and the lowest of each group of neighbours")
    alarms: list[Alarm]
    since_alarm: int | None = Field(description="number of images that the test has seen after the last alarm")
    recent_alarm: bool = Field(description="whether the last alarm still describes the present")
    cause: DriftCause | None = Field(description="what a recent alarm looks like; null without one")
    drivers: list[Driver] = Field(description="images that contributed most to the last alarm, or to the present level")
    patience: float = Field(
        description="smallest mean number of images between false alarms, and the level of an alarm"
    )
    guarantee: str = Field(description="the guarantee of the test in words")


class NewJob(BaseModel):
    """A request to teach a model the chosen reviewed images, or all of them."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: Text = Field(max_length=200)
    images: list[Annotated[int, Field(ge=1, le=MAX_ID)]] | None = Field(None, max_length=100_000)


class Job(BaseModel):
    """A teaching job."""

    id: int
    kind: str
    name: str
    version: int
    state: Literal["queued", "running", "done", "failed", "cancelled", "interrupted"]
    progress: float
    message: str
    images: list[int]
    new_version: int | None = Field(description="the version that the job made")
    who: str
    created: float
    ended: float | None
    seconds_left: float | None = Field(
        description="estimated seconds left; null if the job does not run or nothing is known"
    )
    result: dict[str, object] | None = Field(
        description="how the new version compares with the old one; null in a list of jobs"
    )


class Event(Row):
    """An entry of the history."""

    id: int
    who: str
    what: str
    name: str
    detail: str
    created: float
    image: int | None = Field(description="the image that the entry is about")
    image_name: str = Field(description="name of that image")


class Me(BaseModel):
    """The caller."""

    name: str
    role: Literal["score", "review", "admin"]
    models: list[str] | None = Field(description="the only models that the token is for; null: all")
