"""docs/operations.md matches the code: metrics, the doctor's checks, and reasons of refusals."""

from __future__ import annotations

import fnmatch
import re

from nri_plugin.doctor.checks import examine
from nri_plugin.metrics import Metrics
from nri_plugin.policy.refusals import Reason
from tests.nri_plugin.doctor.whole_node import WHOLE
from tests.support import ROOT, assert_metrics, table_below

TEXT = (ROOT / "docs/operations.md").read_text()


def test_the_metrics_are_those_of_the_code() -> None:
    assert_metrics(TEXT, Metrics())


def test_the_doctors_checks_are_those_of_the_code() -> None:
    written = [row[0].strip("`") for row in table_below(TEXT, "check")]
    assert written == list(dict.fromkeys(finding.check for finding in examine(WHOLE)))


def test_every_reason_of_a_refusal_has_one_row() -> None:
    patterns = [re.findall(r"`([A-Z_*]+)`", row[0]) for row in table_below(TEXT, "reasons")]
    for reason in Reason:
        owners = [row for row in patterns if any(fnmatch.fnmatch(reason.name, p) for p in row)]
        assert len(owners) == 1, f"{reason.name} is in {len(owners)} rows"
    for pattern in (each for row in patterns for each in row):
        assert fnmatch.filter([reason.name for reason in Reason], pattern), pattern
