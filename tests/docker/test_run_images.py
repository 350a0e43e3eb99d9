"""Images and mounts that `gpuslice run --image` refuses, on real daemons."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from docker.errors import APIError

from lab.docker.image import IMAGE, PATH
from tests.docker.grants import BUILD_S
from tests.docker.running import Runs
from tests.docker.running import runs as runs
from tests.nri_plugin.host.test_entrypoint import MUSL, STATIC, program

pytestmark = [pytest.mark.docker, pytest.mark.timeout(BUILD_S)]

Import = Callable[..., str]
_LINK = "-> "
"""Begins the content of a link. Its target follows."""


@pytest.fixture
def image(runs: Runs) -> Iterator[Import]:
    """Make an image of a few files, and of the lab's image's configuration."""
    name = "local/made"

    def make(files: Mapping[str, str | bytes | None], *changes: str) -> str:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for path, content in files.items():
                entry = tarfile.TarInfo(path)
                entry.mode = 0o755
                data = content.encode() if isinstance(content, str) else content or b""
                if content is None:
                    entry.type = tarfile.DIRTYPE
                elif isinstance(content, str) and content.startswith(_LINK):
                    entry.type, entry.linkname = tarfile.SYMTYPE, content.removeprefix(_LINK)
                else:
                    entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data) if entry.isreg() else None)
        runs.client.api.import_image_from_data(
            packed.getvalue(), name, "1", changes=[f"ENV {PATH}", *changes]
        )
        return f"{name}:1"

    yield make
    runs.client.images.remove(f"{name}:1", force=True)


@pytest.mark.parametrize(
    ("files", "words", "error"),
    [
        ({"bin/app": STATIC}, "app", "'app' is statically linked, and loads no library"),
        (
            {"bin/app": program(MUSL.encode() + b"\0"), MUSL[1:]: STATIC},
            "/bin/app",
            "'/bin/app' is a program of musl",
        ),
        (
            {"bin/app": "-> /opt/real", "opt/real": "#!/bin/sh\n", "bin/sh": STATIC},
            "app",
            "'/bin/sh' is statically linked",
        ),
        ({"bin/app": "echo\n"}, "app", "'app' is neither an ELF program nor a script"),
        (
            {"etc/ld.so.preload": "/lib/own.so\n"},
            "app",
            "image file /etc/ld.so.preload: invalid value (it names /lib/own.so)",
        ),
    ],
)
def test_an_image_is_refused_before_it_starts(
    runs: Runs, image: Import, files: Mapping[str, str | bytes | None], words: str, error: str
) -> None:
    assert error in runs.refused("--", *words.split(), image=image(files))
    assert runs.containers() == []


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("VOLUME /.gpuslice", "its VOLUME /.gpuslice must not hide or move /.gpuslice"),
        ("ENV LD_AUDIT=/x.so", "environment LD_AUDIT: invalid value '/x.so': must be unset"),
    ],
)
def test_an_images_configuration_is_refused(
    runs: Runs, image: Import, change: str, error: str
) -> None:
    assert error in runs.refused("--", "app", image=image({"bin/app": STATIC}, change))


def test_a_program_of_a_volume_is_examined_too(runs: Runs) -> None:
    place = runs.machine.namespace.outside(Path("/srv/app"))
    place.write_bytes(STATIC)
    place.chmod(0o755)
    error = runs.refused("-v", "/srv:/srv", "--", "/srv/app")
    assert "'/srv/app' is statically linked" in error


@pytest.mark.parametrize("target", ["g", "e"])
@pytest.mark.parametrize("depth", ["/data", "/data/a"])
@pytest.mark.parametrize("by", ["-v", "VOLUME"])
def test_a_link_in_the_image_diverts_no_mount_to_our_files(
    runs: Runs, target: str, depth: str, by: str
) -> None:
    """runc follows a link at a mount's target. No check of the paths' texts sees that."""
    place = f"{depth}/{target}"
    script = f"mkdir -p {depth}; ln -s /.gpuslice {depth}/g; ln -s /etc {depth}/e"
    made = runs.client.containers.create(IMAGE, ["sh", "-c", script], network_mode="none")
    made.start()
    made.wait()
    changes = f"VOLUME {place}" if by == "VOLUME" else None
    made.commit("local/links", "1", changes=changes)
    options = ("-v", f"/srv:{place}") if by == "-v" else ()
    command = [*("--rm", *options, "--"), *("nvidia-smi",)]
    done = runs.tried(*command, image="local/links:1")
    assert "hides it" in done.stderr or "10240MiB" in done.stdout, done
    assert "40960MiB" not in done.stdout


def test_a_link_that_a_program_made_diverts_no_mount_at_the_next_start(runs: Runs) -> None:
    """Docker keeps a container's files between its starts."""
    script = "nvidia-smi; mv /srv/a /srv/b; mkdir /srv/a; ln -s /etc /srv/a/x"
    first = runs.run("--name", "again", "-v", "/mnt:/srv/a/x", "--", "sh", "-c", script)
    assert "10240MiB" in first.stdout
    container = runs.client.containers.get("again")
    with pytest.raises(APIError, match="hides it"):
        container.start()
    runs.gpuslice("rm", "again")


def test_another_daemon_is_refused(runs: Runs) -> None:
    """It does not list the containers with a grant, and their grants must not be freed."""
    runs.machine.run(["ln", "-s", "/run/docker.sock", "/run/other.sock"])
    runs.environ["DOCKER_HOST"] = "unix:///run/other.sock"
    assert runs.gpuslice("rm", "x").stderr.startswith("gpuslice rm: invalid value 'x'")
    runs.environ["DOCKER_HOST"] = "tcp://127.0.0.1:2375"
    failed = runs.gpuslice("rm", "x")
    assert failed.returncode == 1
    assert "DOCKER_HOST: invalid value tcp://127.0.0.1:2375: must be unset or" in failed.stderr


def test_a_volume_and_a_container_that_show_the_host_are_refused(runs: Runs) -> None:
    bind = {"type": "none", "o": "bind", "device": "/dev"}
    runs.client.volumes.create("shown", driver_opts=bind)
    runs.client.volumes.create("gone", driver_opts=bind | {"device": "/srv/gone"})
    runs.client.containers.create(IMAGE, "true", name="host", ipc_mode="host", network_mode="none")
    runs.client.containers.create(
        IMAGE, "true", name="between", ipc_mode="container:host", network_mode="none"
    )
    try:
        error = runs.refused("-v", "shown:/x", "--", "true")
        assert "--volume: invalid value shown:/x: must not show the host's /dev" in error
        error = runs.refused("-v", "gone:/x", "--", "true")
        assert "--volume: invalid value gone:/x: error while mounting volume" in error
        for name in ("host", "between"):
            error = runs.refused("--ipc", f"container:{name}", "--", "true")
            assert "--ipc: invalid value host: must be" in error
        error = runs.refused("--ipc", "container:no", "--", "true")
        assert error.startswith("gpuslice: --ipc: invalid value container:no: No such container")
        assert "--name: invalid value host: " in runs.refused("--name", "host", "--", "true")
        error = runs.refused("--user", "no-such-user", "--", "true")
        assert "--user: invalid value no-such-user: " in error
    finally:
        for each in ("host", "between"):
            runs.client.containers.get(each).remove(force=True)
        for each in ("shown", "gone"):
            runs.client.volumes.get(each).remove()


def test_nvidias_configuration_counts_only_where_its_runtime_gives_the_grant(runs: Runs) -> None:
    with runs.machine.toolkit_config("[unfinished\n"):
        if runs.machine.release.cdi:
            runs.run("--rm", "--", "true")
        else:
            error = runs.refused("--", "true")
            assert error.startswith("gpuslice: /etc/nvidia-container-runtime/config.toml: must be")


def test_an_absent_image_is_named(runs: Runs) -> None:
    """The machine has no network."""
    error = runs.refused("--", "true", image="127.0.0.1:1/absent:2")
    assert "image 127.0.0.1:1/absent:2 is not here; it is pulled" in error
    assert "gpuslice: --image: invalid value 127.0.0.1:1/absent:2: " in error
    assert "connection refused" in error


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("-v /var/run/gpuslice:/x", "must not show the host's /run/gpuslice"),
        ("-e LD_PRELOAD=/lib/libcuda.so.1", "must not name /lib/libcuda.so.1, which would load"),
        ("--gpu 7", "--gpu: invalid value 7: must be one of 0 (GPU-"),
        ("--env=", "--env: invalid value '': invalid environment variable"),
        ("--volume=", "--volume: invalid value '': must name a path in the container"),
        ("-v :/x", "--volume: invalid value :/x: invalid volume specification"),
        ("--image=BAD:::x", "--image: invalid value BAD:::x: "),
    ],
)
def test_options_are_refused(runs: Runs, words: str, error: str) -> None:
    assert error in runs.refused(*words.split(), "--", "true")
    assert runs.containers() == []
