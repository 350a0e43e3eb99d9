"""The flags and errors that `top`, `ui` and `explain` have in common, and the early lists."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gpuslice.cli import connecting, explain, first_lists
from gpuslice.cli.explanation import Facts
from gpuslice.kube.access import Access
from gpuslice.kube.errors import FORBIDDEN, NOT_FOUND, KubeError
from tests.cli.objects import devices, holder
from tests.kube.api_server import certificate_for, listed, refuse, serving
from tests.kube.test_access import kubeconfig


@pytest.mark.parametrize(
    ("flags", "namespace"),
    [([], "default"), (["--context", "y"], "team"), (["--context", "y", "-n", "ns"], "ns")],
)
def test_the_namespace_of_the_context_is_that_of_explain(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    namespace: str,
) -> None:
    async def read(_: object, namespace: str, name: str, __: float) -> Facts:
        return Facts(namespace, name, None)

    monkeypatch.setattr(explain, "read", read)
    explain.main(["p", "--kubeconfig", kubeconfig(tmp_path), *flags], "gpuslice")
    assert capsys.readouterr().out.startswith(f"pod {namespace}/p: ")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KubeError(FORBIDDEN, "Forbidden", "no"), "no (the ClusterRole gpuslice-viewer has this"),
        (KubeError(500, "Internal", "no"), "gpuslice top: Internal: no\n"),
    ],
)
def test_an_error_for_a_missing_right_names_the_role(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: Exception, text: str
) -> None:
    def work(chosen: Namespace, access: Access) -> int:
        raise error

    parser = connecting.parser("gpuslice", "top", "", "")
    chosen = parser.parse_args(["--kubeconfig", kubeconfig(tmp_path)])
    assert connecting.run(work, chosen, failed=2) == 2
    assert text in capsys.readouterr().err


async def test_the_lists_of_the_first_frame_are_those_of_the_client(tmp_path: Path) -> None:
    asked = list[Mapping[str, Any]]()

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append({**request.headers, **request.query})
        if request.path == first_lists.DEVICES:
            return listed(*devices())
        if request.path == first_lists.PODS:
            return listed(holder("p", 20, 50))
        return refuse(NOT_FOUND if len(asked) < 5 else FORBIDDEN, "no")

    made, context = certificate_for(tmp_path, "127.0.0.1")
    async with serving(answer, context) as served:
        access = replace(served, ca_file=str(made))
        read = [asyncio.wrap_future(each) for each in first_lists.start(access)]
        assert await asyncio.gather(*read) == [devices(), [holder("p", 20, 50)], (), ()]
        again = [asyncio.wrap_future(each) for each in first_lists.start(access)]
        assert await asyncio.gather(*again) == [devices(), [holder("p", 20, 50)], None, None]
    assert {each["Authorization"] for each in asked} == {access.authorization}
    assert {each["fieldSelector"] for each in asked} == {*first_lists.READ.values()}
