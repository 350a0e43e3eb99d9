"""What a container brings along before we answer, and whether it can have a share all the same.

Pure, and part of the policy. A share is limited by what we mount; where a container runs on another
kernel, may use every device, or has a card already, that limit is none, so a grant is refused. A
container without a grant keeps what another device plugin gave it: taking it away is not ours.
"""

from __future__ import annotations

from contract import names
from nri_plugin import cards
from nri_plugin.errors import Reason, Refused, refuse
from nri_plugin.injection import normal
from nri_plugin.model import Container, Pod, Rules


def check_grant(pod: Pod, container: Container, run_dir: str, rules: Rules) -> None:
    """Raise Refused where no share could be limited."""
    if pod.runtime_handler not in rules.runtime_handlers:
        allowed = ", ".join(handler for handler in rules.runtime_handlers if handler)
        raise Refused(refuse(Reason.HANDLER_UNKNOWN, handler=pod.runtime_handler, allowed=allowed))
    if container.privileged:
        raise Refused(refuse(Reason.PRIVILEGED))
    for mount in container.mounts:
        if f"{normal(mount.source)}/".startswith(f"{normal(run_dir)}/"):
            raise Refused(refuse(Reason.RESTORED, mount=mount.destination, source=mount.source))
    given = given_card(container)
    if given:
        raise Refused(refuse(Reason.CARD_GIVEN, given=given))


def check_no_grant(container: Container) -> None:
    """Raise Refused where the environment names cards, so that it could be a device plugin's.

    What images say (all) is overwritten; a list of cards is never taken away in silence.
    """
    key = names.ENV_VISIBLE_DEVICES
    for line in container.env:
        name, _, value = line.partition("=")
        if cards.names_cards(name, value) and value != "all":
            raise Refused(refuse(Reason.ENV_NAMES_CARD, key=key, value=value))


def given_card(container: Container) -> str:
    """The card, or what brings one, that the container has without us; empty: none."""
    for device in container.devices:
        if cards.is_node(device.path, device.major):
            return f"device {device.path}"
    for mount in container.mounts:
        place = normal(mount.destination)
        if cards.is_request(place) or any(
            cards.is_node(path, 0) for path in (place, normal(mount.source))
        ):
            return f"mount {mount.destination}"
    for name in container.cdi_names:
        if cards.is_cdi_name(name):
            return f"CDI device {name}"
    return ""
