"""Revoke what kmirror may do and how it logs in, and restore it."""

from __future__ import annotations

from campaign.acts.scene import Note, Scene, Undo
from campaign.logins import RESOURCES, allow_all, revoke, set_password
from campaign.world import Act, Fault


def revoke_rights(scene: Scene, fault: Fault, note: Note) -> Undo:
    """Survived: what is refused is retried for minutes before a topic is FAILED."""
    side = scene.side(fault, note)
    resource, name = RESOURCES[fault.draw % len(RESOURCES)]
    note["resource"] = resource.name
    note["revoked"] = revoke(side.direct, resource, name)
    return lambda: allow_all(side.direct)


def rotate_password(scene: Scene, fault: Fault, note: Note) -> None:
    """Survived: when refused, kmirror reads its file for another password; open connections stay."""
    side = scene.side(fault, note)
    password = f"password-{fault.draw}"
    if fault.draw & 1:  # in the file first, or at the brokers first
        side.write_password(password)
    set_password(side.direct, password)
    side.write_password(password)


ACTS = {
    Act.REVOKE_RIGHTS: revoke_rights,
    Act.ROTATE_PASSWORD: rotate_password,
}
