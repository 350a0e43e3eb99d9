"""Sources of credentials, and when they are read again."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gpuslice.kube import access
from gpuslice.kube.access import Access, AccessError
from gpuslice.kube.addresses import host_port
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from tests.kube.api_server import certificate_for, refuse, serving
from tests.kube.api_server import json as answered
from tests.support import Clock, until_async

IN_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
IN_POD_OF_IPV6 = {**IN_POD, "KUBERNETES_SERVICE_HOST": "fd00::1"}


def kubeconfig(at: Path, user: Mapping[str, object] = {}, **cluster: Any) -> str:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1/", **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [
            {"name": "x", "context": {"cluster": "c", "user": "u"}},
            {"name": "y", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
        ],
        "current-context": "x",
    }
    path = at / "kubeconfig"
    path.write_text(json.dumps(document))
    return str(path)


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("one")
    (tmp_path / "ca.crt").write_text("a certificate")
    return tmp_path


def test_a_kubeconfig_outranks_the_pods_own_access_and_its_files_are_read_again(
    tmp_path: Path,
) -> None:
    token = tmp_path / "token"
    named = kubeconfig(tmp_path, {"tokenFile": str(token)})
    for text in ("one", "two\n"):
        token.write_text(text)
        found = access.load(named, IN_POD)
        assert found == Access("http://127.0.0.1:1", f"Bearer {text.strip()}")
    assert found.context() is None


def test_a_pod_of_the_cluster_has_its_service_account(account: Path) -> None:
    before = access.load("", IN_POD_OF_IPV6, account)
    assert (before.server, before.ca_file) == ("https://[fd00::1]:443", str(account / "ca.crt"))
    assert before.authorization == "Bearer one"
    assert access.load("", IN_POD_OF_IPV6, account) == before
    (account / "token").write_text("two")
    assert access.load("", IN_POD_OF_IPV6, account) != before


def test_what_is_no_kubeconfig_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    for text in (None, "", "[1]", "{"):
        if text is not None:
            path.write_text(text)
        with pytest.raises(AccessError, match=r"kubeconfig .*/kubeconfig: "):
            access.load(str(path), {})


def test_a_proxy_is_used_where_it_is_meant(account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://proxy:1")
    assert access.load(kubeconfig(account), {}).proxy == "http://proxy:1"
    monkeypatch.setenv("no_proxy", "example.com,127.0.0.1")
    assert access.load(kubeconfig(account), {}).proxy == ""
    monkeypatch.setenv("no_proxy", "example.com")
    own = {"proxy-url": "http://own:2"}
    assert access.load(kubeconfig(account, {}, **own), {}).proxy == "http://own:2"
    monkeypatch.setenv("https_proxy", "http://proxy:1")
    assert access.load("", IN_POD, account).proxy == ""


def test_a_service_account_without_its_files_is_refused_with_what_is_missing(account: Path) -> None:
    (account / "ca.crt").unlink()
    with pytest.raises(AccessError, match=f"service account: .*{account}/ca.crt"):
        access.load("", IN_POD, account)
    (account / "token").write_text("\n")
    with pytest.raises(AccessError, match="token is empty"):
        access.load("", IN_POD, account)
    (account / "token").unlink()
    with pytest.raises(AccessError, match=f"service account: .*{account}/token"):
        access.load("", IN_POD, account)


# --- read again


async def identified(request: web.Request) -> web.Response:
    return answered({"as": request.headers["Authorization"]})


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

        async def is_accepted() -> bool:
            try:
                return bool(await kube.get("/p") == {})
            except KubeError as error:
                assert "Unauthorized" in str(error)
                return False

        async with Kube(load(), load) as kube, asyncio.timeout(60):
            for _ in range(3):
                assert not await is_accepted()
            current.clear()
            while not kube.problem:
                assert not await is_accepted()
            assert kube.problem == "credentials: the file is not there"
            current.append("Bearer new")
            while not await is_accepted():
                pass
            assert kube.problem == ""


async def test_credentials_are_read_again_every_minute_and_new_ones_have_a_new_connection(
    tmp_path: Path,
) -> None:
    """A new client certificate needs a new connection, because only a handshake presents it."""
    clock, connections, reads = Clock(), set[asyncio.BaseTransport | None](), list[float]()
    made, context = certificate_for(tmp_path, "127.0.0.1")

    async def answer(request: web.Request) -> web.Response:
        connections.add(request.transport)
        return await identified(request)

    async with serving(answer, context) as found:
        old = replace(found, ca_file=str(made))

        def load() -> Access:
            reads.append(clock.seconds)
            return replace(old, authorization=f"Bearer {len(reads)}")

        async with Kube(old, load, clock) as kube:
            for _ in range(2):
                assert await kube.post("/p", {}) == {"as": "Bearer secret"}
            assert (len(connections), reads) == (1, [])
            clock.seconds += 61
            async with asyncio.timeout(30):
                while await kube.post("/p", {}) != {"as": "Bearer 1"}:
                    pass
            assert (len(connections), reads) == (2, [clock.seconds])


async def test_unusable_credentials_are_reported_until_they_are_replaced() -> None:
    clock = Clock()
    async with serving(identified) as found:
        unusable = Access(found.server, "Bearer no\nline")
        async with Kube(found, lambda: unusable, clock) as kube:
            for _ in range(2):
                clock.seconds += 61
                assert await kube.get("/p") == {"as": "Bearer secret"}
                await until_async(lambda: kube._renewing is None)
                assert "credentials: invalid value: must have" in kube.problem
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


PASSWORD = {"username": "u", "password": "p"}


def test_only_an_unusual_kubeconfig_needs_the_kubernetes_package(
    account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    assert access.load("", IN_POD, account).authorization == "Bearer one"
    assert access.load(kubeconfig(account), {}).server == "http://127.0.0.1:1"
    with pytest.raises(AccessError, match=r"kubeconfig .*: the Python package kubernetes"):
        access.load(kubeconfig(account, PASSWORD), {})


def test_a_named_context_outranks_the_pods_own_access(account: Path) -> None:
    environ = {**IN_POD, "KUBECONFIG": kubeconfig(account)}
    assert access.load("", environ, account).authorization == "Bearer one"
    assert access.load("", environ, account, "y").namespace == "team"


@pytest.mark.parametrize("user", [{}, PASSWORD], ids=["usual", "unusual"])
def test_a_context_is_chosen_by_its_name(account: Path, user: Mapping[str, object]) -> None:
    path = kubeconfig(account, user)
    assert access.load(path, {}).namespace == ""
    assert access.load(path, IN_POD, account, "y").namespace == "team"
    with pytest.raises(AccessError, match=r"kubeconfig .*\bz\b"):
        access.load(path, {}, account, "z")


@pytest.mark.parametrize("encoded", [False, True])
def test_a_kubeconfig_is_read_as_the_kubernetes_package_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoded: bool
) -> None:
    def part(key: str, text: str) -> dict[str, str]:
        (tmp_path / key).write_text(text)
        data = base64.b64encode(text.encode()).decode()
        return {f"{key}-data": data} if encoded else {key: key}

    user = {**part("client-certificate", "c"), **part("client-key", "k"), "token": "t"}
    own = {"server": "https://h:1/", "tls-server-name": "n", "insecure-skip-tls-verify": True}
    path = kubeconfig(tmp_path, user, **own, **part("certificate-authority", "a"))
    found = access.load(path, {})
    monkeypatch.setattr("gpuslice.kube.kubeconfig.read", lambda *_: None)
    theirs = access.load(path, {})
    for key in ("ca_file", "certificate_file", "key_file"):
        text, other = (Path(getattr(each, key)).read_text() for each in (found, theirs))
        assert text == other and len(text) == 1
    files = {"ca_file": "", "certificate_file": "", "key_file": "", "changed": ()}
    assert replace(found, **files) == replace(theirs, **files)  # type: ignore[arg-type]


def test_the_address_of_a_url() -> None:
    assert (host_port("::1", 80), host_port("10.0.0.1", 80)) == ("[::1]:80", "10.0.0.1:80")
