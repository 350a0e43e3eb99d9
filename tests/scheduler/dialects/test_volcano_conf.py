"""Volcano's configuration: the guide's, and what Volcano accepts or refuses of it."""

from __future__ import annotations

import pytest

from scheduler.dialects.volcano_conf import ALL, NUMBER, SHARING, VGPU, Conf, ConfError, parse

GUIDE = """\
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: conformance
- plugins:
  - name: drf
  - name: predicates
    arguments:
      predicate.GPUSharingEnable: true # enable gpu sharing
  - name: proportion
  - name: nodeorder
  - name: binpack
"""


def arguments(plugin: str, *written: str) -> str:
    lines = "".join(f"\n      {each}" for each in written)
    return f"tiers:\n- plugins:\n  - name: {plugin}\n    arguments:{lines}\n"


def test_the_guide() -> None:
    found = parse(GUIDE)
    assert found.on == {SHARING}
    assert found.problems == ()
    plugins = ("priority", "gang", "conformance", "drf", "proportion", "nodeorder", "binpack")
    assert found.ignored == ("actions", *(f"plugin {name}" for name in plugins))


@pytest.mark.parametrize(
    ("plugin", "written", "on"),
    [
        ("predicates", ["predicate.GPUNumberEnable: true"], {NUMBER}),
        ("predicates", ['predicate.GPUNumberEnable: "True"'], {NUMBER}),
        ("predicates", ["predicate.GPUSharingEnable: false"], set()),
        ("deviceshare", ["deviceshare.GPUSharingEnable: true"], {SHARING}),
        ("deviceshare", ["deviceshare.GPUNumberEnable: true"], {NUMBER}),
        ("deviceshare", ["deviceshare.VGPUEnable: 1"], {VGPU}),
        # Each plugin reads its own arguments.
        ("predicates", ["deviceshare.VGPUEnable: true"], set()),
        ("nodeorder", ["predicate.GPUSharingEnable: true"], set()),
    ],
)
def test_switches(plugin: str, written: list[str], on: set[str]) -> None:
    assert parse(arguments(plugin, *written)).on == on


@pytest.mark.parametrize("text", ["", "actions: allocate", "tiers: []", "tiers:\n- plugins:\n"])
def test_a_configuration_without_arguments_turns_nothing_on(text: str) -> None:
    assert parse(text).on == frozenset()
    assert Conf().on == ALL


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (
            ["deviceshare.GPUSharingEnable: true", "deviceshare.GPUNumberEnable: true"],
            "can not define true in both gpu sharing and gpu number; gpuslice serves both, and each"
            " pod must use one of them",
        ),
        (
            ["deviceshare.GPUSharingEnable: true", "deviceshare.VGPUEnable: true"],
            "gpu-share and vgpu can't be used together; gpuslice serves both, and each pod must use"
            " one of them",
        ),
        (
            ["deviceshare.VGPUEnable: yeah"],
            "deviceshare.VGPUEnable: invalid value yeah: must be true or false",
        ),
        (
            ["deviceshare.VGPUEnable: [true]"],
            "deviceshare.VGPUEnable: invalid value list: must be true or false",
        ),
    ],
)
def test_what_volcano_refuses_is_a_problem(written: list[str], problem: str) -> None:
    assert parse(arguments("deviceshare", *written)).problems == (problem,)


def test_other_arguments_are_named() -> None:
    text = arguments("deviceshare", "deviceshare.SchedulePolicy: binpack")
    assert parse(text).ignored == ("argument deviceshare.SchedulePolicy",)


@pytest.mark.parametrize("text", ["a: [", "[]", "tiers: 1", "\x00", "!!bool x", "!!int ''"])
def test_a_configuration_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ConfError, match=r"volcano-scheduler\.conf: must be"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tiers:\n- [", "line 3, column 1: did not find expected node content"),
        ("tiers: []\n? [a]\n: 1", "line 2, column 3: found unhashable key"),
        ("\x00", "unacceptable character #x0000: control characters are not allowed"),
    ],
)
def test_a_text_that_is_not_yaml_is_refused_with_its_place(text: str, why: str) -> None:
    """The same text each time: an event is repeated where its text differs."""
    for _ in range(2):
        with pytest.raises(ConfError) as refused:
            parse(text)
        assert str(refused.value).startswith(f"volcano-scheduler.conf: must be YAML: {why}")
