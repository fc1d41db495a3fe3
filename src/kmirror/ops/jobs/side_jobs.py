"""The jobs that an engine runs beside the copy, in the order in which they are reported."""

from __future__ import annotations

from collections.abc import Mapping

from kmirror.beside import beside
from kmirror.engine.driver.side_jobs import SideJob
from kmirror.ops.groups.sync import GroupSyncJob
from kmirror.ops.jobs.topic_discovery import DiscoveryJob
from kmirror.ops.jobs.settings_sync import SettingsSyncJob
from kmirror.ops.rights.acl_sync import RightsJob
from kmirror.ops.rights.client_sync import ClientsJob


def side_jobs_of(mirror: str, destination_properties: Mapping[str, str]) -> list[SideJob]:
    """Return the jobs of one mirror; each opens connections of its own when it first runs, and closes them."""
    return [
        RightsJob(mirror, destination_properties),
        ClientsJob(mirror, destination_properties),
        GroupSyncJob(mirror, destination_properties),
        SettingsSyncJob(mirror, destination_properties),
        DiscoveryJob(mirror, destination_properties),
        *beside("mirrormaker_jobs")(mirror, destination_properties),
    ]
