"""The jobs that an engine does for a mirror beside copying, in the order in which they are told of."""

from __future__ import annotations

from collections.abc import Mapping

from kmirror.engine.side_jobs import SideJob
from kmirror.ops.acl_sync import RightsJob
from kmirror.ops.discovery import DiscoveryJob
from kmirror.ops.group_sync import GroupSyncJob
from kmirror.ops.settings_sync import SettingsSyncJob


def side_jobs_of(mirror: str, destination_properties: Mapping[str, str]) -> list[SideJob]:
    """Return the jobs of one mirror; each opens connections of its own when it is first done, and closes them."""
    return [
        RightsJob(mirror, destination_properties),
        GroupSyncJob(mirror, destination_properties),
        SettingsSyncJob(mirror, destination_properties),
        DiscoveryJob(mirror, destination_properties),
    ]
