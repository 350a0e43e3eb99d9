"""The request that is read from a pod, or the text with which it is refused."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.core.request import Request
from scheduler.dialects.reading import RequestError
from scheduler.kubernetes import requests
from tests.scheduler.objects import container

HALF = container("main", core=50, ratio=50)


def request(raw: dict[str, Any]) -> Request:
    read = requests.request(raw)
    assert read is not None
    return read


def refused(raw: dict[str, Any]) -> str:
    with pytest.raises(RequestError) as caught:
        requests.request(raw)
    return str(caught.value)
