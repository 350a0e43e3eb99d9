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
        ({".gpuslice": "-> /tmp", "tmp": None}, "app", "image path /.gpuslice: invalid value"),
        (
            {"etc/ld.so.preload": "/lib/own.so\n"},
            "app",
            "image file /etc/ld.so.preload: invalid value (it names /lib/own.so)",
        ),
        (
            {"etc/ld.so.preload": "-> /tmp/list"},
            "app",
            "image file /etc/ld.so.preload: invalid value (a symbolic link)",
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
        ("VOLUME /etc", "its VOLUME /etc must not hide or move /etc/ld.so.preload"),
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
    runs.run("--name", "kept", "--", "true")
    runs.machine.run(["sh", "-c", "echo OTHER > /var/lib/gpuslice/docker/.daemon"])
    try:
        assert "must be OTHER" in runs.refused("--", "true")
        failed = runs.gpuslice("rm", "kept")
        assert failed.returncode == 1 and "must be OTHER" in failed.stderr
        assert any("/kept" in str(each) for each in runs.containers())
    finally:
        runs.machine.run(["rm", "/var/lib/gpuslice/docker/.daemon"])
    runs.gpuslice("rm", "kept")


def test_an_absent_image_is_named(runs: Runs) -> None:
    """The machine has no network."""
    error = runs.refused("--", "true", image="127.0.0.1:1/absent:2")
    assert "image 127.0.0.1:1/absent:2 is not here; it is pulled" in error
    assert "connection refused" in error


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--privileged", "--privileged: must not be set"),
        (
            "-v evil:/.gpuslice/grant",
            "--volume: invalid value evil:/.gpuslice/grant: must not hide",
        ),
        ("-v /srv:/etc", "must not hide or move /etc/ld.so.preload"),
        ("-v /var/run/gpuslice:/x", "must not show the host's /run/gpuslice"),
        ("-e NVIDIA_VISIBLE_DEVICES=all", "must not select GPUs"),
        ("-e LD_PRELOAD=/lib/libcuda.so.1", "must not name /lib/libcuda.so.1, which would load"),
        ("--ipc host", "--ipc: invalid value host"),
        ("--gpu 7", "--gpu: invalid value 7: must be one of 0 (GPU-"),
    ],
)
def test_options_are_refused(runs: Runs, words: str, error: str) -> None:
    assert error in runs.refused(*words.split(), "--", "true")
    assert runs.containers() == []
