from __future__ import annotations

from bgad.service.store import tables
from tests.service.conftest import Service


def test_many_reviews_do_not_hide_the_way_back(service: Service) -> None:
    first = service.store.versions.released("plate")
    second = service.store.versions.add("plate", "b" * 64, "plate.bgad", state="candidate")
    for version in (first, second):
        service.store.versions.release(version.id, "ann")
    with service.store.database.engine.begin() as connection:
        event = {"who": "ann", "what": "review", "name": "plate", "detail": "image 1: bad", "created": 1.0}
        connection.execute(tables.events.insert(), [event] * 1001)
    assert service.bench.registry.previous("plate").id == first.id


def test_a_rule_is_kept_for_the_present_rate_only(service: Service) -> None:
    """Somebody may set the threshold any number of times."""
    registry = service.bench.registry
    thresholds = []
    for rate in (0.2, 0.4, 0.6, 0.8, 0.4):
        rule = registry.decision_rule(registry.set_rate("plate", rate, "ann"))
        assert rule.rate == rate
        thresholds.append(rule.threshold)
    assert thresholds[1] == thresholds[4] != thresholds[3]
    assert len(registry._rules) == 1
