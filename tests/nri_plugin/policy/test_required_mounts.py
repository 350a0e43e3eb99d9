"""The mounts that a container must have, checked by its mount table alone."""

from __future__ import annotations

import pytest

from nri_plugin.policy import injection, required_mounts
from nri_plugin.policy.model import CdiDevice, Claim, Container, Mount, Paths, Share, Specs

STORE = "/run/gpuslice/.store/abc/libvgpu.so"
SHARES = (Share("GPU-1", 0, 1, 1),)
SPECS = Specs({"GPU-1": CdiDevice("GPU-1", "spec")})
PATHS = Paths("/run/gpuslice", STORE)
CONTAINER = Container("c0ffee", "main")
RUN = "/run/gpuslice/c0ffee"
OURS = injection.adjustment(CONTAINER, "c0ffee", Claim(SHARES), SPECS, PATHS).mounts
PLACES = {
    "/.gpuslice": RUN,
    "/.gpuslice/grant": f"{RUN}/grant",
    "/.gpuslice/region": f"{RUN}/region",
    "/.gpuslice/libvgpu.so": STORE,
    "/etc/ld.so.preload": f"{RUN}/preload",
    "/etc/ld-nix.so.preload": f"{RUN}/preload-nix",
}


def test_the_required_mounts_are_all_that_the_limit_needs() -> None:
    found = required_mounts.in_place(OURS, RUN, "/run/gpuslice/.store")
    assert found is not None
    assert {mount.destination: mount.source for mount in found} == PLACES


@pytest.mark.parametrize("place", sorted(set(PLACES) - {"/.gpuslice/grant"}))
def test_a_missing_or_different_mount_of_ours_is_detected(place: str) -> None:
    store = "/run/gpuslice/.store"
    without = [mount for mount in OURS if mount.destination != place]
    assert required_mounts.in_place(without, RUN, store, PLACES) is None
    elsewhere = [*without, Mount(place, "/elsewhere")]
    assert required_mounts.in_place(elsewhere, RUN, store, PLACES) is None
    if place == "/etc/ld-nix.so.preload":  # the first releases did not mount it
        assert required_mounts.in_place(without, RUN, store) is not None
    else:
        assert required_mounts.in_place(without, RUN, store) is None
    if place != "/.gpuslice/libvgpu.so":  # only the file seen inside can show which library it is
        assert required_mounts.in_place(elsewhere, RUN, store) is None


def test_a_container_is_held_to_what_the_release_that_made_it_mounted() -> None:
    """A store that was moved since, and a new mount path, raise no alarm."""
    earlier = {**PLACES, "/.gpuslice/libvgpu.so": "/opt/store/abc/libvgpu.so"}
    del earlier["/etc/ld-nix.so.preload"]
    mounts = [Mount(place, source) for place, source in earlier.items() if "grant" not in place]
    found = required_mounts.in_place(mounts, RUN, "/run/gpuslice/.store", earlier)
    assert found is not None
    assert {mount.destination: mount.source for mount in found} == earlier
    assert required_mounts.in_place(OURS, RUN, "/run/gpuslice/.store", {}) is None


def test_a_container_that_shares_its_grant_has_a_preload_list_of_its_own() -> None:
    directory = "/run/gpuslice/pod-u"
    mounts = injection.adjustment(CONTAINER, "pod-u", Claim(SHARES, True), SPECS, PATHS).mounts
    found = required_mounts.in_place(mounts, directory, "/run/gpuslice/.store")
    assert found is not None
    lists = {mount.source for mount in found if mount.destination.endswith(".preload")}
    assert lists == {f"{directory}/preload.main", f"{directory}/preload-nix.main"}


def test_strict_modes_forwarders_must_be_in_place_too() -> None:
    store = "/run/gpuslice/.store"
    more = (
        Mount("/usr/lib/libcuda.so.1", f"{store}/f/libcuda.so.1"),
        Mount("/.gpuslice/driver/libcuda.so.1", "/host/libcuda.so.1"),
        Mount("/data", "/host/data"),
    )
    found = required_mounts.in_place((*OURS, *more), RUN, store)
    assert found is not None
    assert {mount.destination for mount in found} - set(PLACES) == {
        "/usr/lib/libcuda.so.1",
        "/.gpuslice/driver/libcuda.so.1",
    }
