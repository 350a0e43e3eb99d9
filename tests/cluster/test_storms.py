"""A thousand pods at once on a hundred nodes, in calm weather and with the extender killed.

The short form: `make storm` is the whole one.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from contract import names
from simgpu.lab.api import Api
from simgpu.lab.controlplane import ControlPlane
from simgpu.lab.fleet import Fleet
from simgpu.lab.fleet_objects import Shape
from simgpu.lab.installation import Installation
from tests.cluster.running import running
from tests.cluster.storm import Storm
from tests.cluster.weather import Weather, pass_over

pytestmark = [pytest.mark.cluster, pytest.mark.e2e, pytest.mark.timeout(900)]

SHAPE = Shape(nodes=100)
WEATHERS = [
    Weather("calm"),
    Weather("the extender is killed", extender_kills=8, kill_after_s=(3.0, 9.0)),
]


@pytest.mark.parametrize("weather", WEATHERS, ids=lambda weather: weather.about)
def test_in_a_storm_the_books_are_right_and_what_fits_is_bound(
    installed: ControlPlane, weather: Weather
) -> None:
    with Fleet(installed, SHAPE.all_nodes()), running(installed) as installation:
        storm = asyncio.run(_storm(installed, installation, weather))
    assert storm.figures.bound >= 900
    assert storm.figures.kills == weather.extender_kills


async def _storm(plane: ControlPlane, installation: Installation, weather: Weather) -> Storm:
    namespace = f"storm-{WEATHERS.index(weather)}"
    async with Api(plane) as api:
        await api.ask("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        storm = Storm(api, namespace, names.SCHEDULER_NAME, random.Random(6), strict=False)
        await pass_over(storm, weather, installation)
        await storm.clear()
        return storm
