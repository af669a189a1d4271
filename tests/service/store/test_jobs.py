from __future__ import annotations

from dataclasses import replace

from bgad.service.store.store import Store
from bgad.service.store.versions import Version


def test_a_job_from_queued_to_done(store: Store, version: Version) -> None:
    job = store.jobs.add("teach", version, [3, 4], "ann")
    assert (job.state, job.images, job.ended, job.result) == ("queued", [3, 4], None, None)
    store.jobs.update(job.id, state="running", progress=0.5)
    assert store.jobs.get(job.id).ended is None
    store.jobs.update(job.id, state="done", result={"a": [1, None]}, new_version=version.id)
    ended = store.jobs.get(job.id)
    assert (ended.result, ended.progress) == ({"a": [1, None]}, 0.5)
    assert ended.ended is not None
    assert ended.ended > job.created
    wheel = store.versions.add("wheel", "b" * 64, "wheel.bgad", state="released")
    newer = store.jobs.add("teach", wheel, [], "ann")
    assert [row.id for row in store.jobs.all()] == [newer.id, job.id]
    (only,) = store.jobs.all("gear")
    assert only == replace(ended, result=None)


def test_what_was_not_finished_is_called_interrupted(store: Store, version: Version) -> None:
    jobs = [store.jobs.add("teach", version, [], "ann").id for _ in range(3)]
    store.jobs.update(jobs[1], state="running")
    store.jobs.update(jobs[2], state="done", message="done")
    assert store.jobs.interrupt_unfinished() == jobs[:2]
    said = "the service ended before the job did"
    assert [(store.jobs.get(n).state, store.jobs.get(n).message) for n in jobs] == [
        ("interrupted", said), ("interrupted", said), ("done", "done"),
    ]  # fmt: skip
    assert store.jobs.interrupt_unfinished() == []


def test_a_job_that_has_ended_stays_as_it_ended(store: Store, version: Version) -> None:
    job = store.jobs.add("teach", version, [], "ann")
    assert store.jobs.update(job.id, state="done", message="done", progress=1.0)
    assert not store.jobs.update(job.id, state="cancelled", message="cancelled by ann")
    assert not store.jobs.update(job.id, progress=0.5)
    ended = store.jobs.get(job.id)
    assert (ended.state, ended.message, ended.progress) == ("done", "done", 1.0)
