"""MkDocs hook that checks the relative links of the Markdown files beside docs/, which MkDocs itself does not read."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)

log = logging.getLogger("mkdocs.hooks.root_links")  # `--strict` counts the warnings of loggers below "mkdocs"


def on_post_build(config: Mapping[str, Any]) -> None:
    """Warn about every link of a root document whose file or anchor does not exist."""
    docs, site = Path(config["docs_dir"]), Path(config["site_dir"])
    root = docs.parent
    for document in sorted(root.glob("*.md")):
        for target in LINK.findall(FENCE.sub("", document.read_text("utf-8"))):
            if "://" not in target and (problem := broken(root, docs, site, target)):
                log.warning("%s links to %s: %s", document.name, target, problem)


def broken(root: Path, docs: Path, site: Path, target: str) -> str:
    """Return why a relative link is broken, or an empty string where it is sound."""
    path, _, anchor = target.partition("#")
    file = root / path
    if path and not file.exists():
        return "no such file"
    if not anchor:
        return ""
    if not file.is_relative_to(docs):
        return "link to the file instead: anchors are checked in docs/ only"
    page = file.relative_to(docs).with_suffix("")
    built = site / (page.parent if page.name == "index" else page) / "index.html"
    return "" if f'id="{anchor}"' in built.read_text("utf-8") else "no such anchor"
