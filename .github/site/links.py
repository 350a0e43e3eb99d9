"""A hook of mkdocs: links to files outside of docs/ lead to the repository.

mkdocs knows only files in docs/. On GitHub the same links are relative.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any, Final

_LINK: Final = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def resolved(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[1]))
        return link[0] if path.startswith("docs/") else f"]({config.repo_url}/blob/HEAD/{path}"

    return _LINK.sub(resolved, markdown)
