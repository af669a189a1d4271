"""What goes over the wire; the OpenAPI page is made of it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _storable(text: str) -> str:
    """Not all that JSON can say is text: half of a pair of characters, or a NUL, which no database takes."""
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("there is a character in it that is none")
    return text


Text = Annotated[str, AfterValidator(_storable)]
Verdict = Literal["good", "bad", "unsure"]


class Problem(BaseModel):
    """An error: what, where, what to do."""

    detail: str


class Version(BaseModel):
    """One version of a model."""

    id: int
    checksum: str
    state: Literal["released", "candidate", "retired", "discarded"]
    parent: int | None
    created: float = Field(description="seconds since 1970, UTC")


class Again(BaseModel):
    """How far a version that was released is with what it scores again; 0 of 0 where nothing is under way."""

    done: int
    total: int


class Model(BaseModel):
    """A model by its name, and its versions."""

    name: str
    version: Version = Field(description="the one that scores")
    versions: list[Version]
    threshold: float
    rate: float = Field(description="share of good parts that are rejected, at most")
    guarantee: str
    calibration: int = Field(description="held-out normals that the threshold rests on")
    size: int = Field(description="pixels that the model looks at, a side")
    scored: int = Field(description="images that the released version has scored")
    again: Again = Field(description="what was reviewed or scored before, being scored by the released version")


class Score(BaseModel):
    """What the released version of a model says of an image."""

    image: int
    name: str
    model: str
    version: int
    checksum: str
    score: float = Field(description="higher is stranger")
    p_value: float = Field(description="share of good parts that look at least as strange")
    threshold: float
    is_anomaly: bool
    decision: Literal["normal", "anomalous"]
    map: str = Field(description="where to get the map")
    overlay: str = Field(description="where to get the picture with its heat")


class Failure(BaseModel):
    """A picture of a batch that could not be scored."""

    name: str
    error: str


class Batch(BaseModel):
    """The results of several pictures, in their order."""

    results: list[Score | Failure]


class Listed(BaseModel):
    """An image in a list."""

    id: int
    name: str
    width: int
    height: int
    score: float
    p_value: float
    threshold: float
    is_anomaly: bool
    created: float
    verdict: Verdict | None
    note: str | None
    has_mask: bool = Field(description="whether a defect was painted with the verdict")
    thumbnail: str


class ImageList(BaseModel):
    """A page of a list."""

    images: list[Listed]
    total: int
    as_of: str = Field(
        description="give it back to get other pages of the same list; what comes in meanwhile does not move it, "
        "but a threshold that is set does, and so does a picture sent again that had been dropped, or where the newest "
        "come first"
    )
    place: int | None = Field(description="of the image to find, from 0; none where it is not in the list")


class News(BaseModel):
    """What has changed since a list was made."""

    new: int = Field(description="images that were scored since then and fit the filters; 0 where no `after` is given")
    latest: str = Field(description="another one wherever something was scored, reviewed or released")
    version: int = Field(description="the one that scores")
    threshold: float
    candidates: list[int] = Field(description="versions that are neither released nor discarded")
    jobs: list[int] = Field(description="that wait or run")


class Lesson(BaseModel):
    """A picture that was reviewed as good or bad, from which a model can learn."""

    id: int
    name: str
    verdict: Literal["good", "bad"]
    has_mask: bool = Field(description="whether a defect was painted with the verdict")
    width: int
    height: int
    score: float | None = Field(description="by the released version; none where it has not scored it yet")


class Review(BaseModel):
    """What a person said of an image."""

    id: int
    image: int
    verdict: Verdict | Literal["withdrawn"] = Field(description="withdrawn: the image counts as not reviewed")
    note: str
    who: str
    created: float
    mask: str | None = Field(description="where to get what was painted as the defect")
    ignore: str | None = Field(description="where to get what was painted to be ignored")


class NewReview(BaseModel):
    """A verdict, with what was painted: PNGs of the image's size in base64, all but black is marked."""

    model_config = ConfigDict(extra="forbid")

    verdict: Verdict
    note: Text = Field("", max_length=2000)
    mask: str | None = Field(None, max_length=90_000_000, description="the defect; not with the verdict good")
    ignore: str | None = Field(None, max_length=90_000_000)
    model: Text = Field(
        "", max_length=200, description="that was looked at, for the history; else the last to score it"
    )


class Judged(BaseModel):
    """What one version says of an image."""

    model: str
    version: int
    checksum: str
    score: float
    p_value: float
    threshold: float
    is_anomaly: bool


class Said(Judged):
    """What one version has said of an image, and when."""

    created: float


class Asked(Judged):
    """What one version says of an image now; it is not kept."""

    calibration: int = Field(description="held-out normals that the p-value rests on")


class Neighbour(BaseModel):
    """An image with a score nearby."""

    id: int
    name: str
    score: float
    is_anomaly: bool
    verdict: Verdict | None


class ImageDetail(BaseModel):
    """One image with its history."""

    id: int
    name: str
    width: int
    height: int
    received: float
    dropped: float | None = Field(description="when its picture went, as nobody had reviewed it; none: it is there")
    scores: list[Said]
    reviews: list[Review]
    neighbours: list[Neighbour]


class Taught(BaseModel):
    """How many reviewed images the version has learnt from, or was calibrated on."""

    good: int
    bad: int


class Threshold(BaseModel):
    """Scores of normals and of reviewed images, and what the threshold promises. The threshold of the rate
    k / (n + 1) is the k-th highest of the n scores of calibration."""

    rate: float
    threshold: float
    calibration: list[float] = Field(description="scores of held-out normals, ascending")
    good: list[float] = Field(description="scores of images that were reviewed as good and not taught, ascending")
    bad: list[float] = Field(description="the same of those that were reviewed as bad")
    taught: Taught = Field(description="reviewed images that are left out")
    smallest_rate: float
    bounds: list[float] = Field(description="for k = 1, 2 and so on: the true rate is below, with that confidence")
    confidence: float
    guarantee: str = Field(description="of the rate in use, in words")


class NewRate(BaseModel):
    """Another false-reject rate."""

    model_config = ConfigDict(extra="forbid")

    rate: float = Field(ge=1e-6, lt=1)


class Point(BaseModel):
    """One image of a series."""

    created: float
    score: float
    p_value: float
    is_anomaly: bool
    image: int


class Level(BaseModel):
    """How the drift test stood after an image."""

    number: int = Field(description="how many images the test had seen")
    created: float
    level: float


class Alarm(BaseModel):
    """When the drift test called."""

    number: int = Field(description="how many images the test had seen")
    created: float
    image: int


class Driver(Point):
    """An image that moved the drift test."""

    name: str
    verdict: Verdict | None
    dropped: float | None = Field(description="when its picture went, as nobody had reviewed it; none: it is there")
    side: Literal["high", "low"] = Field(description="in which half of the scores before it its score lies")


class Bin(BaseModel):
    """The scores of an hour or a day."""

    start: float
    end: float
    count: int
    flagged: float = Field(description="share that was called anomalous")
    low: float = Field(description="a twentieth of the scores is below")
    middle: float
    high: float = Field(description="a twentieth of the scores is above")


class DriftView(BaseModel):
    """The scores over time, and whether they have changed."""

    total: int = Field(description="scores since then")
    tested: int = Field(description="those that the test has seen")
    every: Literal["hour", "day"]
    bins: list[Bin] = Field(description="the newest 2,000 that have scores, oldest first")
    series: list[Point] = Field(description="the last ones, oldest first")
    levels: list[Level] = Field(description="at most 2,000: of neighbours the highest and the lowest")
    alarms: list[Alarm]
    since_alarm: int | None = Field(description="images that the test has seen after the last alarm")
    fresh: bool = Field(description="whether the last alarm is so near that it speaks of now")
    drivers: list[Driver] = Field(description="moved the test most: to the last alarm, or since it was last quiet")
    patience: float = Field(description="images to a false alarm on average, at least; the level that calls one")
    promise: str


class NewJob(BaseModel):
    """Teach a model: from these reviewed images, or from all."""

    model_config = ConfigDict(extra="forbid")

    model: Text = Field(max_length=200)
    images: list[int] | None = Field(None, max_length=100_000)


class Job(BaseModel):
    """A piece of long work."""

    id: int
    kind: str
    name: str
    version: int
    state: Literal["queued", "running", "done", "failed", "cancelled", "interrupted"]
    progress: float
    message: str
    images: list[int]
    made: int | None = Field(description="the version that came of it")
    who: str
    created: float
    ended: float | None
    left: float | None = Field(
        description="seconds that it still takes, as far as is known; none where it does not run"
    )
    result: dict[str, object] | None = Field(
        description="how the new version compares with the old one; none in a list of jobs"
    )


class Event(BaseModel):
    """Who did what."""

    id: int
    who: str
    what: str
    name: str
    detail: str
    created: float
    image: int | None = Field(description="that it is about")
    picture: str = Field(description="the name of that image")


class Me(BaseModel):
    """Who asks."""

    name: str
    role: Literal["score", "review", "admin"]
