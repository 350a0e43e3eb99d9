"""The options of `gpuslice run --image`, and the rules that refuse them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import pytest

from gpuslice.cli.main import asks_for_container, main
from gpuslice.docker import options, refusals
from shim.limits import UsageError

_GIVEN = ["--memory", "1GiB", "--image", "debian"]
NO_OPTIONS: Callable[[str], Mapping[str, str]] = lambda _: {}  # noqa: E731
_SECRET = ("/run/gpuslice", "/var/lib/gpuslice")


def test_options_of_docker_run_are_read() -> None:
    words = (
        "-it -v a:/b -v /c:/d:ro -e X=1 -p 80:8080 --shm-size 64m --rm -u 1:2 --entrypoint= -w/w"
    )
    parsed = options.parse([*_GIVEN, *words.split(), "--", "sh", "-c", "--rm"])
    assert (parsed.interactive, parsed.tty, parsed.rm, parsed.detach) == (True, True, True, False)
    assert (parsed.volume, parsed.env, parsed.publish) == (
        ["a:/b", "/c:/d:ro"],
        ["X=1"],
        ["80:8080"],
    )
    assert (parsed.user, parsed.entrypoint, parsed.workdir) == ("1:2", "", "/w")
    assert (parsed.shm_size, parsed.command) == (64 << 20, ["sh", "-c", "--rm"])


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("5", 5), ("1k", 1 << 10), ("2MiB", 2 << 20), ("3GB", 3 << 30)]
)
def test_sizes_of_both_forms(text: str, size_bytes: int) -> None:
    assert options.parse([*_GIVEN, "--shm-size", text]).shm_size == size_bytes


@pytest.mark.parametrize(
    ("words", "is_ours"),
    [
        ("--memory 1GiB --image debian", True),
        ("--image=debian", True),
        ("--memory 1GiB -- tool --image debian", False),
        ("--help", False),
    ],
)
def test_an_image_before_the_command_asks_for_a_container(words: str, is_ours: bool) -> None:
    assert asks_for_container(words.split()) == is_ours


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        ("--privileged", ["--privileged: must not be set, because it gives access to every GPU"]),
        ("--gpus all", ["--gpus: must not be set, because it can give a GPU without a limit"]),
        ("--device=/dev/nvidia0", ["--device: must not be set"]),
        ("--pid host", ["--pid: must not be set, because with it a program can remove the limit"]),
        ("--runtime runc", ["--runtime: must not be set"]),
        ("--tmpfs /.gpuslice", ["--tmpfs: must not be set", "mount a volume by -v"]),
        ("--cpus 2", ["--cpus: invalid option: must be one of", "--memory, ", "--restart"]),
        ("nvidia-smi", ["nvidia-smi: invalid argument: the container's command must follow --"]),
        ("--shm-size big", ["--shm-size: invalid value 'big': must be a size"]),
        ("--name", ["--name: expected one argument"]),
    ],
)
def test_an_option_is_refused_with_the_reason(words: str, texts: Sequence[str]) -> None:
    with pytest.raises(UsageError) as refused:
        options.parse([*_GIVEN, *words.split()])
    for text in texts:
        assert text in str(refused.value)


_HIDES = "must not hide or move /.gpuslice, on which the limit depends"
_SHOWS = "must not show the host's"


@pytest.mark.parametrize(
    ("volume", "text"),
    [
        *((f"/x:{place}", _HIDES) for place in ("/.gpuslice", "/.gpuslice/", "//.gpuslice/region")),
        ("evil:/.gpuslice/grant", _HIDES),
        ("/x:/etc/../.gpuslice/grant:ro", _HIDES),
        *((f"/x:{place}", _HIDES) for place in ("/", "//", "/tmp/..")),
        *(
            (f"/x:{place}", "must not hide or move /etc/ld.so.preload")
            for place in ("/etc/ld.so.preload", "/etc", "/etc/", "/etc/../etc//ld.so.preload")
        ),
        ("/x:/etc/ld-nix.so.preload", "must not hide or move /etc/ld-nix.so.preload"),
        ("/.gpuslice", _HIDES),
        *((f"{place}:/x", f"{_SHOWS} /dev") for place in ("/dev", "/dev/", "/dev/nvidia0", "/")),
        *(
            (f"{place}:/x", f"{_SHOWS} /proc")
            for place in ("/proc", "/proc/1/root:ro", "/a/../proc")
        ),
        *((f"{place}:/x:ro", f"{_SHOWS} /run/gpuslice") for place in ("/run", "/run/gpuslice/k")),
        *(
            (f"{place}:/x", f"{_SHOWS} /var/lib/gpuslice")
            for place in ("/var", "/var/lib/gpuslice/")
        ),
        ("/x:/dev", "must not be mounted at /dev"),
        ("/x:/dev/nvidia0", "must not be mounted at /dev/nvidia0"),
        ("/x:/proc/", "must not be mounted at /proc"),
        ("/dev/null:/var/run/nvidia-container-devices/all", "must not request a GPU"),
    ],
)
def test_a_volume_is_refused_with_the_reason(volume: str, text: str) -> None:
    asked = refusals.volume(volume, os.path.normpath, NO_OPTIONS)
    said = [*refusals.broken([asked], (), "", _SECRET)]
    assert any(text in each for each in said), said
    assert all(each.startswith(f"--volume: invalid value {volume}: ") for each in said)


@pytest.mark.parametrize(
    "volume",
    ["/x:/data", "x:/etcetera", ".:/work:ro", "/cache", "shm:/dev/shm", "/lib:/run", "/y:/etc/x"],
)
def test_other_volumes_are_allowed(volume: str) -> None:
    asked = refusals.volume(volume, lambda path: os.path.normpath(f"/home/{path}"), NO_OPTIONS)
    assert [*refusals.broken([asked], ["A=1"], "shareable", _SECRET)] == []


def test_a_volume_of_the_host_is_judged_by_where_its_links_lead() -> None:
    to_run = lambda path: "/run" if path == "/srv/link" else path  # noqa: E731
    asked = refusals.volume("/srv/link:/x", to_run, NO_OPTIONS)
    assert _SHOWS in next(refusals.broken([asked], (), "", _SECRET))
    assert asked.bind == "/run:/x"


@pytest.mark.parametrize(
    ("made_with", "shown"),
    [
        ({"type": "none", "o": "bind", "device": "/dev"}, "/dev"),
        ({"type": "none", "o": "ro,rbind", "device": "/proc/1/root"}, "/proc"),
        ({"type": "none", "o": "bind", "device": "/srv"}, ""),
        ({"type": "nfs", "o": "addr=10.0.0.1", "device": ":/srv"}, ""),
        ({"type": "tmpfs", "o": "size=1g", "device": "tmpfs"}, ""),
    ],
)
def test_a_named_volume_is_judged_by_what_it_mounts(
    made_with: Mapping[str, str], shown: str
) -> None:
    asked = refusals.volume("data:/x", os.path.normpath, lambda _: made_with)
    said = [*refusals.broken([asked], (), "", _SECRET)]
    assert [f"{_SHOWS} {shown}," in each for each in said] == [True] * bool(shown)
    assert asked.bind == "data:/x"


@pytest.mark.parametrize("kind", ["proc", "devtmpfs", "overlay", "ext4", "nfs3"])
def test_a_named_volumes_type_may_show_no_device(kind: str) -> None:
    asked = refusals.volume("data:/x", os.path.normpath, lambda _: {"type": kind, "o": "ro"})
    (said,) = refusals.broken([asked], (), "", _SECRET)
    assert f"data:/x: type of the volume: invalid value {kind}: must be one of nfs, " in said


@pytest.mark.parametrize(("text", "shown"), [("", "''"), ("data:", "data:"), (":", ":")])
def test_a_volume_without_a_path_is_told_so(text: str, shown: str) -> None:
    asked = refusals.volume(text, os.path.normpath, NO_OPTIONS)
    said = next(refusals.broken([asked], (), "", _SECRET))
    assert said.startswith(f"--volume: invalid value {shown}: must name a path")


@pytest.mark.parametrize(
    ("words", "text", "shown"),
    [
        (
            "--name web",
            'The container name "/web" is already in use',
            "--name: invalid value web: ",
        ),
        (
            "-p 80:80 -p 81:81",
            "driver failed programming external connectivity on endpoint x: port is allocated",
            "--publish: invalid value 80:80, 81:81: ",
        ),
        ("-e =1", "invalid environment variable: =1", "--env: invalid value =1: "),
        ("--env=", "invalid environment variable: ", "--env: invalid value '': "),
        ("", "invalid reference format", "--image: invalid value debian: "),
        ("--network own", "network own not found", "--network: invalid value own: "),
        ("--name web", "no space left on device", ""),
        ("", "network own not found", ""),
    ],
)
def test_an_error_of_docker_names_the_option(words: str, text: str, shown: str) -> None:
    assert refusals.of_docker(text, options.parse([*_GIVEN, *words.split()])) == shown + text


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("NVIDIA_VISIBLE_DEVICES=all", "must not select GPUs; --gpu selects them"),
        ("NVIDIA_VISIBLE_DEVICES", "must not select GPUs; --gpu selects them"),
        ("CUDA_DEVICE_MEMORY_LIMIT_0=99g", "must not set a limit"),
        ("CUDA_DEVICE_SM_LIMIT=100", "must not set a limit"),
        ("CUDA_DEVICE_MEMORY_SHARED_CACHE=/x", "must not set a limit"),
    ],
)
def test_a_variable_is_refused_with_the_reason(line: str, text: str) -> None:
    (said,) = refusals.broken((), [line], "", ())
    assert said.startswith(f"--env: invalid value {line}: {text}")


def test_the_hosts_shared_memory_is_refused() -> None:
    (said,) = refusals.broken((), (), "host", ())
    assert said.startswith("--ipc: invalid value host: must be private, shareable")


@pytest.mark.parametrize("path", ["/.gpuslice", "/etc/", "/etc/ld.so.preload", "/"])
def test_an_images_volume_over_ours_is_refused(path: str) -> None:
    (said,) = refusals.broken_by_image("web", [path, "/data"])
    assert said.startswith(f"--image: invalid value web: its VOLUME {path} must not hide or move /")


def test_help_describes_containers_and_programs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        options.parse(["--image", "x", "--help"])
    assert ended.value.code == 0
    containers = capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    for text in (containers, capsys.readouterr().out):
        assert "--image" in text and "gpuslice run --memory 20GiB -- python train.py" in text
