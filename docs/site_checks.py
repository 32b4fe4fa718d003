"""A MkDocs hook that checks the text of the built pages; mkdocs.yml lists the hook.

Strict builds report broken links. The hook reports what they accept: reStructuredText that no step converts to
Markdown, and roles of docstrings that become text instead of links.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

RESTRUCTURED = re.compile(r":[a-z]+:[`~.\w]|={4,}")
# The source of an object, which a reader unfolds, shows its docstring as it is written.
SOURCE = re.compile(r'<details class="mkdocstrings-source".*?</details>', re.DOTALL)
TAG = re.compile(r"<[^>]+>")
LINK_OF_A_ROLE = re.compile(r'href="\.\./functions/#structinf\.relax"[^>]*><code>structinf\.relax</code></a>')


def on_post_build(config: Any, **kwargs: Any) -> None:
    """Raise PluginError if a page shows reStructuredText, or if roles are no links."""
    site = Path(config["site_dir"])
    pages = {path.relative_to(site).as_posix(): path.read_text("utf-8") for path in site.rglob("*.html")}
    for name, page in pages.items():
        if found := restructured_text(page):
            raise PluginError(f"{name} shows reStructuredText: {', '.join(found)}")
    if not LINK_OF_A_ROLE.search(pages["reference/queries/index.html"]):
        raise PluginError("reference/queries/index.html has no link for :func:`structinf.relax`")


def restructured_text(page: str) -> list[str]:
    """Return the reStructuredText that the article of an HTML page shows."""
    article = SOURCE.sub("", page[page.find("<article") :])
    return RESTRUCTURED.findall(html.unescape(TAG.sub("", article)))
