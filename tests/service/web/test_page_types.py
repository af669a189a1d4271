"""The page's types are checked against each other by tsc; here, against the API that sends the JSON."""

from __future__ import annotations

import re
from pathlib import Path

import bgad.service
from tests.service.conftest import Service

TYPES = Path(bgad.service.__file__).with_name("web") / "lib" / "types.js"
# Types that the schema does not name: a common base, and a job's result, which the schema leaves open.
PAGE_ONLY = {"Judged", "ComparedImage", "ComparedSet", "JobResult"}


def page_types() -> dict[str, set[str]]:
    """The fields of every object type that the page declares."""
    source = TYPES.read_text()
    types: dict[str, set[str]] = {}
    for block in re.findall(r"/\*\*(.*?)\*/", source, re.DOTALL):
        if named := re.search(r"@typedef \{object\} (\w+)", block):
            types[named[1]] = set(re.findall(r"@property \{.*\} \[?(\w+)\]?", block))
    for base, fields, name in re.findall(r"@typedef \{(\w+) & \{(.*?)\}\} (\w+)", source):
        types[name] = types[base] | set(re.findall(r"(\w+):", fields))
    return types


def test_the_page_knows_the_fields_that_the_api_sends(service: Service) -> None:
    schemas = service.client.get("/v1/openapi.json").json()["components"]["schemas"]
    types = page_types()
    assert {"Model", "ImageDetail", "Job", "DriftView", "Driver", "RecordedScore"} <= types.keys()
    for name in types.keys() - PAGE_ONLY:
        assert types[name] == set(schemas[name]["properties"]), f"{TYPES.name} and the API differ on {name}"
