"""Whatever a pod's author wrote, each container with a grant requires the agent."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.contract import names
from gpuslice.contract.required_plugins import MAX_CONTAINER_NAME_CHARS, binding_annotations

BARE = "required-plugins.noderesource.dev"
container_names = st.from_regex(r"\A[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")


def legal(key: str) -> bool:
    """Return whether the API server accepts the key of an annotation."""
    name = key.partition("/")[2] or key
    pattern = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
    return len(name) <= 63 and re.fullmatch(pattern, name) is not None


def required_by(written: Mapping[str, str], container: str) -> Sequence[str]:
    """Return the plugins that the runtime's validator requires for the container. Only the first
    annotation that exists counts: the container's, the pod's, then the one without a scope."""
    scopes = (f"{BARE}/container.{container}", f"{BARE}/pod", BARE)
    found = [json.loads(written[key]) for key in scopes if key in written]
    return found[0] if found else ()


def test_text() -> None:
    keys = (f"{BARE}/pod", f"{BARE}/container.main")
    assert binding_annotations(["main", "x" * 54]) == dict.fromkeys(keys, '["gpuslice"]')
    assert MAX_CONTAINER_NAME_CHARS == 53


@given(st.lists(container_names, min_size=1), st.booleans(), st.booleans())
def test_no_author_outranks_what_the_binding_writes(
    granted: list[str], bare: bool, everywhere: bool
) -> None:
    author = {f"{BARE}/pod": "[]"} | ({BARE: "[]"} if bare else {})
    if everywhere:
        author |= {f"{BARE}/container.{name}": "[]" for name in granted}
    author = {key: value for key, value in author.items() if legal(key)}
    ours = binding_annotations(granted)
    assert all(legal(key) for key in ours)
    for name in granted:
        assert required_by({**author, **ours}, name) == [names.PLUGIN_NAME]


@pytest.mark.parametrize("name", ["", "Main", "a_b", "-a", "a.b", "x" * 64, "a\n"])
def test_a_name_that_kubernetes_does_not_allow_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="is not a container's name"):
        binding_annotations([name])
