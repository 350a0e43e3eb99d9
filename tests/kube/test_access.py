"""Credentials: their sources, and that they are read again."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gpuslice.kube import access
from gpuslice.kube.access import Access, AccessError
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from tests.kube.api_server import certificate_for, refuse, serving
from tests.kube.api_server import json as answered
from tests.support import until_async


def kubeconfig(at: Path, user: dict[str, Any], **cluster: Any) -> str:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1/", **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = at / "kubeconfig"
    path.write_text(json.dumps(document))
    return str(path)


def test_a_kubeconfig_that_is_named_outranks_the_pods_own(tmp_path: Path) -> None:
    named = kubeconfig(tmp_path, {"token": "one"})
    found = access.load(named, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert (found.server, found.authorization) == ("http://127.0.0.1:1", "Bearer one")
    assert found.context() is None


def test_a_token_file_is_read_again_at_each_load(tmp_path: Path) -> None:
    token = tmp_path / "token"
    named = kubeconfig(tmp_path, {"tokenFile": str(token)})
    for text in ("one", "two\n"):
        token.write_text(text)
        assert access.load(named, {}).authorization == f"Bearer {text.strip()}"


def test_a_pod_of_the_cluster_has_its_service_account(tmp_path: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    (tmp_path / "token").write_text("one")
    (tmp_path / "ca.crt").write_text("a certificate")
    before = access.load("", environ, tmp_path)
    assert (before.server, before.ca_file) == ("https://[fd00::1]:443", str(tmp_path / "ca.crt"))
    assert before.authorization == "Bearer one"
    assert access.load("", environ, tmp_path) == before
    (tmp_path / "token").write_text("two")
    assert access.load("", environ, tmp_path) != before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "kubeconfig .*/kubeconfig: "),
        ("", "kubeconfig .*/kubeconfig: "),
        ("[1]", "kubeconfig .*/kubeconfig: "),
        ("{", "kubeconfig .*/kubeconfig: "),
    ],
)
def test_what_is_no_kubeconfig_is_refused_with_its_name(
    tmp_path: Path, text: str | None, said: str
) -> None:
    path = tmp_path / "kubeconfig"
    if text is not None:
        path.write_text(text)
    with pytest.raises(AccessError, match=said):
        access.load(str(path), {})


def test_a_proxy_is_used_where_it_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://proxy:1")
    assert access.load(kubeconfig(tmp_path, {}), {}).proxy == "http://proxy:1"
    monkeypatch.setenv("no_proxy", "example.com,127.0.0.1")
    assert access.load(kubeconfig(tmp_path, {}), {}).proxy == ""
    own = {"proxy-url": "http://own:2"}
    monkeypatch.setenv("no_proxy", "example.com")
    assert access.load(kubeconfig(tmp_path, {}, **own), {}).proxy == "http://own:2"
    monkeypatch.setenv("https_proxy", "http://proxy:1")
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    (tmp_path / "token").write_text("one")
    (tmp_path / "ca.crt").write_text("a certificate")
    assert access.load("", environ, tmp_path).proxy == ""


def test_a_service_account_without_its_files_is_refused_with_what_is_missing(
    tmp_path: Path,
) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(AccessError, match=f"service account: .*{tmp_path}/token"):
        access.load("", environ, tmp_path)
    (tmp_path / "token").write_text("\n")
    with pytest.raises(AccessError, match="token is empty"):
        access.load("", environ, tmp_path)
    (tmp_path / "token").write_text("one")
    with pytest.raises(AccessError, match=f"service account: .*{tmp_path}/ca.crt"):
        access.load("", environ, tmp_path)


async def test_a_token_that_the_server_refuses_is_read_again_at_once() -> None:
    current = ["Bearer old"]

    async def answer(request: web.Request) -> web.Response:
        if request.headers["Authorization"] != "Bearer new":
            return refuse(401, "Unauthorized")
        return answered({})

    async with serving(answer) as found:

        def load() -> Access:
            if not current:
                raise AccessError("the file is not there")
            return Access(found.server, current[0])

        async with Kube(load(), load) as kube:
            for _ in range(3):
                with pytest.raises(KubeError, match="Unauthorized"):
                    await kube.get("/p")
            current.clear()
            async with asyncio.timeout(30):
                while not kube.problem:
                    with pytest.raises(KubeError, match="Unauthorized"):
                        await kube.get("/p")
            assert kube.problem == "credentials: the file is not there"
            current.append("Bearer new")
            async with asyncio.timeout(30):
                while True:
                    try:
                        assert await kube.get("/p") == {}
                        break
                    except KubeError:
                        await asyncio.sleep(0.01)
            assert kube.problem == ""


async def test_credentials_are_read_again_every_minute() -> None:
    now, reads = [1000.0], [0]

    async def answer(request: web.Request) -> web.Response:
        return answered({"as": request.headers["Authorization"]})

    async with serving(answer) as found:

        def load() -> Access:
            reads[0] += 1
            return Access(found.server, f"Bearer {reads[0]}")

        async with Kube(found, load, lambda: now[0]) as kube:
            assert await kube.get("/p") == {"as": "Bearer secret"}
            assert reads == [0]
            now[0] += 61
            async with asyncio.timeout(30):
                while (await kube.get("/p"))["as"] != "Bearer 1":
                    pass
            assert reads == [1]


async def test_with_new_credentials_a_request_has_a_new_connection(tmp_path: Path) -> None:
    """The server takes the identity from the connection where there are client certificates."""
    now, connections = [1000.0], list[asyncio.BaseTransport]()
    made, context = certificate_for(tmp_path, "127.0.0.1")

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        if request.transport not in connections:
            connections.append(request.transport)
        return answered({"as": request.headers["Authorization"]})

    async with serving(answer, context) as found:
        old = replace(found, ca_file=str(made))
        new = replace(old, authorization="Bearer new")
        async with Kube(old, lambda: new, lambda: now[0]) as kube:
            for _ in range(2):
                assert await kube.post("/p", {}) == {"as": "Bearer secret"}
            assert len(connections) == 1
            now[0] += 61
            async with asyncio.timeout(30):
                while (await kube.post("/p", {}))["as"] != "Bearer new":
                    pass
            assert len(connections) == 2


async def test_a_post_goes_by_the_proxy_where_there_is_one() -> None:
    async def answer(request: web.Request) -> web.Response:
        return answered({"host": request.headers["Host"], "method": request.method})

    async with serving(answer) as found:
        behind = Access("http://api.example:6443", proxy=found.server)
        async with Kube(behind) as kube:
            said = {"host": "api.example:6443", "method": "POST"}
            assert await kube.post("/p", {}) == said


async def test_unusable_credentials_are_reported_until_they_are_replaced() -> None:
    now = [1000.0]

    async def answer(request: web.Request) -> web.Response:
        return answered({"as": request.headers["Authorization"]})

    async with serving(answer) as found:

        def load() -> Access:
            return Access(found.server, "Bearer no\nline")

        async with Kube(found, load, lambda: now[0]) as kube:
            for _ in range(2):
                now[0] += 61
                assert await kube.get("/p") == {"as": "Bearer secret"}
                await until_async(lambda: kube._renewing is None)
                assert "credentials: invalid value: must have" in kube.problem
            assert await kube.post("/p", {}) == {"as": "Bearer secret"}
            assert await kube.get("/p") == {"as": "Bearer secret"}


@pytest.mark.parametrize(
    "server",
    ["127.0.0.1:6443", "127.0.0.1", "ftp://127.0.0.1", "https://", "https://[::1", "http://h:x"],
)
def test_an_invalid_server_url_is_refused(server: str) -> None:
    with pytest.raises(AccessError, match=re.escape(server)):
        Kube(Access(server))


def test_a_scheme_in_capital_letters_is_accepted() -> None:
    assert Access("HTTPS://127.0.0.1:6443").context() is not None


def test_a_pod_does_not_load_what_reads_a_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one")
    (tmp_path / "ca.crt").write_text("a certificate")
    program = (
        "import sys, pathlib; from gpuslice.kube import access, client, reflector;"
        f"access.load('', {{'KUBERNETES_SERVICE_HOST': '10.0.0.1'}}, pathlib.Path('{tmp_path}'));"
        "print('kubernetes' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True)
    assert done.stdout == "False\n", done.stderr


def test_without_the_kubernetes_package_a_kubeconfig_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(AccessError, match=r"kubeconfig .*: the Python package kubernetes"):
        access.load(kubeconfig(tmp_path, {}), {})
