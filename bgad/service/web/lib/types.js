// Types of the JSON that the API sends. Names and fields are those of the OpenAPI schema; a test compares them.

export {};

/** @typedef {"good" | "bad" | "unsure"} Verdict */

/**
 * One version of a model.
 * @typedef {object} Version
 * @property {number} id
 * @property {string} checksum
 * @property {string} precision
 * @property {"released" | "candidate" | "retired" | "discarded"} state
 * @property {number | null} parent
 * @property {number} created
 */

/**
 * Progress of rescoring after a release; 0 of 0 when no rescoring is under way.
 * @typedef {object} Rescoring
 * @property {number} done
 * @property {number} total
 */

/**
 * A model with its versions.
 * @typedef {object} Model
 * @property {string} name
 * @property {Version} version
 * @property {Version[]} versions
 * @property {number} threshold
 * @property {number} rate
 * @property {number} map_threshold
 * @property {string} guarantee
 * @property {number} calibration
 * @property {number} size
 * @property {number} scored
 * @property {Rescoring} rescoring
 */

/**
 * An image in a list.
 * @typedef {object} ListedImage
 * @property {number} id
 * @property {string} name
 * @property {number} width
 * @property {number} height
 * @property {number} score
 * @property {number} p_value
 * @property {number} threshold
 * @property {boolean} is_anomaly
 * @property {Record<string, number>} parts
 * @property {string | null} reason
 * @property {number[] | null} region
 * @property {number} created
 * @property {Verdict | null} verdict
 * @property {string | null} note
 * @property {boolean} has_mask
 * @property {number} review
 * @property {string} thumbnail
 */

/**
 * One page of a list of images.
 * @typedef {object} ImageList
 * @property {ListedImage[]} images
 * @property {number} total
 * @property {string} as_of
 * @property {number | null} position
 */

/**
 * What has changed since a list was made.
 * @typedef {object} Changes
 * @property {number} new
 * @property {string} latest
 * @property {number} version
 * @property {number} threshold
 * @property {number[]} candidates
 * @property {number[]} jobs
 */

/**
 * A reviewed image that a model can be taught.
 * @typedef {object} Lesson
 * @property {number} id
 * @property {string} name
 * @property {"good" | "bad"} verdict
 * @property {boolean} has_mask
 * @property {number} width
 * @property {number} height
 * @property {number | null} score
 */

/**
 * A person's verdict on an image.
 * @typedef {object} Review
 * @property {number} id
 * @property {number} image
 * @property {Verdict | "withdrawn"} verdict
 * @property {string} note
 * @property {string} who
 * @property {number} created
 * @property {string | null} mask
 * @property {string | null} ignore
 */

/**
 * Nothing was saved, because somebody else has reviewed the image meanwhile.
 * @typedef {object} ReviewChanged
 * @property {string} detail
 * @property {Review} review
 */

/**
 * The score of an image by one version.
 * @typedef {object} Judged
 * @property {string} model
 * @property {number} version
 * @property {string} checksum
 * @property {string} precision
 * @property {number} score
 * @property {number} p_value
 * @property {number} threshold
 * @property {boolean} is_anomaly
 * @property {Record<string, number>} parts
 * @property {string | null} reason
 * @property {number[] | null} region
 * @property {Record<string, number> | null} limits
 */

/** @typedef {Judged & { created: number, sent_threshold: number, sent_is_anomaly: boolean }} RecordedScore */

/** @typedef {Judged & { calibration: number }} ComputedScore */

/**
 * An image with a similar score.
 * @typedef {object} Neighbour
 * @property {number} id
 * @property {string} name
 * @property {number} score
 * @property {boolean} is_anomaly
 * @property {Verdict | null} verdict
 */

/**
 * One image with its scores and reviews.
 * @typedef {object} ImageDetail
 * @property {number} id
 * @property {string} name
 * @property {number} width
 * @property {number} height
 * @property {number} received
 * @property {number | null} dropped
 * @property {RecordedScore[]} scores
 * @property {Review[]} reviews
 * @property {string} view
 * @property {Neighbour[]} neighbours
 */

/**
 * Scores of calibration normals and of reviewed images, and the bounds of each false-reject rate.
 * @typedef {object} Threshold
 * @property {number} rate
 * @property {number} threshold
 * @property {number[]} calibration
 * @property {number[]} good
 * @property {number[]} bad
 * @property {{ good: number, bad: number }} taught
 * @property {number[]} rates
 * @property {number[]} bounds
 * @property {number} confidence
 * @property {boolean} is_confident
 * @property {string} guarantee
 */

/**
 * One image in a series of scores.
 * @typedef {object} Point
 * @property {number} created
 * @property {number} score
 * @property {number} p_value
 * @property {boolean} is_anomaly
 * @property {number} image
 */

/**
 * The level of the drift test after an image.
 * @typedef {object} Level
 * @property {number} number
 * @property {number} created
 * @property {number} level
 */

/**
 * An alarm of the drift test.
 * @typedef {object} Alarm
 * @property {number} number
 * @property {number} created
 * @property {number} image
 */

/** @typedef {Point & { name: string, verdict: Verdict | null, dropped: number | null, side: "high" | "low" }} Driver */

/**
 * The scores of one hour or one day.
 * @typedef {object} Bin
 * @property {number} start
 * @property {number} end
 * @property {number} count
 * @property {number} flagged
 * @property {number} low
 * @property {number} median
 * @property {number} high
 */

/**
 * What the change behind an alarm looks like.
 * @typedef {object} DriftCause
 * @property {"defects" | "imaging" | "unclear"} kind
 * @property {string} text
 * @property {number} images
 * @property {number} flagged
 * @property {number} images_before
 * @property {number} flagged_before
 * @property {number} shift
 */

/**
 * Scores over time and the state of the drift test.
 * @typedef {object} DriftView
 * @property {number} total
 * @property {number} tested
 * @property {"hour" | "day"} every
 * @property {Bin[]} bins
 * @property {Point[]} series
 * @property {Level[]} levels
 * @property {Alarm[]} alarms
 * @property {number | null} since_alarm
 * @property {boolean} recent_alarm
 * @property {DriftCause | null} cause
 * @property {Driver[]} drivers
 * @property {number} patience
 * @property {string} guarantee
 */

/**
 * A teaching job. `result` is null in a list of jobs.
 * @typedef {object} Job
 * @property {number} id
 * @property {string} kind
 * @property {string} name
 * @property {number} version
 * @property {"queued" | "running" | "done" | "failed" | "cancelled" | "interrupted"} state
 * @property {number} progress
 * @property {string} message
 * @property {number[]} images
 * @property {number | null} new_version
 * @property {string} who
 * @property {number} created
 * @property {number | null} ended
 * @property {number | null} seconds_left
 * @property {JobResult | null} result
 */

/**
 * One entry of the history.
 * @typedef {object} Event
 * @property {number} id
 * @property {string} who
 * @property {string} what
 * @property {string} name
 * @property {string} detail
 * @property {number} created
 * @property {number | null} image
 * @property {string} image_name
 */

/**
 * The caller's name and role.
 * @typedef {object} Me
 * @property {string} name
 * @property {"score" | "review" | "admin"} role
 * @property {string[] | null} models
 */

// The schema leaves a job's result open; these are its fields.

/** @typedef {{ score: number, p_value: number, is_anomaly: boolean, margin: number }} VersionScore */

/** @typedef {{ auroc: number | null, missed: number, false_rejects: number }} Figures */

/**
 * One image that two versions have scored.
 * @typedef {object} ComparedImage
 * @property {string} name
 * @property {number} label
 * @property {string} [sha256]
 * @property {number} [image]
 * @property {boolean} [taught]
 * @property {VersionScore} before
 * @property {VersionScore} after
 * @property {"better" | "worse" | "same"} change
 */

/**
 * Two versions on one set of images.
 * @typedef {object} ComparedSet
 * @property {number} images
 * @property {number} bad
 * @property {string} [reason] why there are no images
 * @property {Figures} before
 * @property {Figures} after
 * @property {ComparedImage[]} rows
 */

/**
 * The comparison that a finished job holds.
 * @typedef {object} JobResult
 * @property {{ before: number, after: number }} threshold
 * @property {ComparedSet} validation
 * @property {ComparedSet} reviews
 */
