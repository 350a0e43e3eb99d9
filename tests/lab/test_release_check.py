"""CHANGELOG.md names the version that is built, and for a release also its date."""

from __future__ import annotations

import pytest

from tools.release_check import changelog_problem

DATED = "# Changelog\n\n## [0.2.0] - 2026-12-01\n\n- x\n\n## [0.1.0] - 2026-11-01\n"
OPEN = "# Changelog\n\n## [0.2.0] - unreleased\n\n## [0.1.0] - 2026-11-01\n"
NEXT = "# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - 2026-11-01\n"

ROWS = {
    "a release with its date": (DATED, "0.2.0", "v0.2.0", ""),
    "a release that is not dated": (OPEN, "0.2.0", "v0.2.0", "must exist and have its date"),
    "a release without a section": (NEXT, "0.2.0", "v0.2.0", "must exist and have its date"),
    "a tag of another version": (DATED, "0.2.1.dev3", "v0.2.0", "must be v0.2.1.dev3"),
    "before a release": (OPEN, "0.2.0", None, ""),
    "a build of a commit before a release": (OPEN, "0.2.0.dev5+g1234567", None, ""),
    "a build of a commit after a release": (NEXT, "0.1.1.dev5+g1234567", None, ""),
    "a version that is not named": (DATED, "0.3.0", None, r"must be [0.3.0] or [Unreleased]"),
    "an empty changelog": ("# Changelog\n", "0.1.0", None, "must be [0.1.0]"),
}


@pytest.mark.parametrize("title", ROWS)
def test_the_changelog_names_the_version(title: str) -> None:
    text, version, tag, expected = ROWS[title]
    problem = changelog_problem(text, version, tag)
    assert expected in problem and bool(problem) == bool(expected)
