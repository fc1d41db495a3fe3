"""`config`: show or change the settings of a mirror, and the client properties of its source.

A running engine applies changed settings within seconds. What `create` refuses is refused here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kmirror.columns import FLAG, TEXT, Table, columns_of, shown, table_row
from kmirror.errors import ExitCode, RefusedError, UsageError
from kmirror.ops.base.context import Destination, change, known_mirror, own_event, require_mirror
from kmirror.ops.base.results import VerbResult
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.mirrors.create import checked_properties, source_cluster_id
from kmirror.ops.rights.acl_sync import require_possible
from kmirror.ops.rights.own_rights import require_own_rights
from kmirror.settings.client_keys import is_client_key
from kmirror.settings.parsing import check_change, setting_of, stored_settings, unknown_settings
from kmirror.settings.table import SETTINGS
from kmirror.state.records import MirrorRecord
from kmirror.state.snapshot import Changes, State
from kmirror.words import one_line


@table_row
class SettingRow:
    """One setting of a mirror."""

    key: str = shown(TEXT, "the setting, or the client property of the source", "KEY")
    value: str = shown(TEXT, "its value as it is written", "VALUE", of_row=lambda r: one_line(r.value))
    is_default: bool = shown(
        FLAG,
        "whether that is the default",
        "FROM",
        key="default",
        of_row=lambda row: "default" if row.is_default else "set",
    )
    changeable: bool = shown(FLAG, "whether `config --set` may change it")
    help: str = shown(TEXT, "what it does")


MIRROR_SETTINGS: Table[SettingRow] = Table(
    columns_of(SettingRow),
    "KEY FROM VALUE",
)
#: Removed when discovery by these filters is disabled.
_FILTERS = "auto.create.mirror.topics.filters"


def show_config(destination: Destination, mirror: str) -> tuple[SettingRow, ...]:
    """Return every setting of the mirror, then the source's client properties as stored (references unresolved).

    Raises:
        RefusedError: no such mirror.
        UnreachableError: the destination does not answer.
    """
    record = known_mirror(destination.state(), mirror)
    settings = stored_settings(record.settings)
    rows = [
        SettingRow(
            key=row.key,
            value=row.kind.write(getattr(settings, row.attribute)),
            is_default=row.key not in record.settings,
            changeable=row.changeable,
            help=row.help,
        )
        for row in SETTINGS
    ]
    rows += [
        SettingRow(
            key=key,
            value=record.settings[key],
            is_default=False,
            changeable=False,
            help="Set by a newer kmirror. Unknown to this one: it has no effect here.",
        )
        for key in unknown_settings(record.settings)
    ]
    rows += [
        SettingRow(
            key=key,
            value=value,
            is_default=False,
            changeable=True,
            help="Kafka client property of the connection to the source.",
        )
        for key, value in sorted(record.source.items())
    ]
    return tuple(rows)


def change_config(
    destination: Destination,
    mirror: str,
    assignments: Mapping[str, str],
    unset: Iterable[str] = (),
    *,
    dry_run: bool = False,
) -> VerbResult:
    """Set and unset settings and client properties of the source; one result for the mirror.

    New connection properties are tried first, and must lead to the same cluster.

    Raises:
        UsageError: an unknown key, an invalid value, or a key both set and unset.
        RefusedError: no such mirror, a plaintext secret, a setting that cannot change once the mirror exists, or
            another cluster answers (SOURCE_CLUSTER_CHANGED, LOOP).
        UnreachableError: the destination does not answer, or the source with the new properties.
    """
    if not dry_run:
        destination.will_change(mirror)
    record = require_mirror(destination.state(), mirror)
    as_stored = unknown_settings(record.settings)
    names = (key if is_client_key(key) or key in as_stored else setting_of(key).key for key in unset)
    removed = tuple(dict.fromkeys(names))
    source, settings = checked_properties(assignments, complete=False)
    both = sorted({*source, *settings} & set(removed))
    if both:
        raise UsageError(f"{', '.join(both)}: both set and unset", "remove one of the two")
    changed = _changed(record, source, settings, removed)
    if changed.source != record.source:
        source_cluster_id(destination, changed.source, record.source_cluster_id)
    if not stored_settings(record.settings).sync_topic_acls_enabled:
        require_possible(destination, stored_settings(changed.settings))
    differences = _differences(record, changed)
    if not differences:
        return _result(mirror, Outcome.NOOP, "nothing to change: the settings already have these values", dry_run)
    if dry_run:
        require_own_rights(destination)
        return _result(mirror, Outcome.DONE, f"would change {'; '.join(differences)}", dry_run)

    def decide(state: State) -> Changes:
        present = require_mirror(state, mirror)
        if present.source != record.source:
            raise RefusedError(
                f"another operation changed the connection of mirror {mirror} meanwhile", "check it and try again"
            )
        details = {"changed": _differences(present, _changed(present, source, settings, removed))}
        event = own_event(mirror, "config", ExitCode.OK.name, details)
        return Changes((_changed(present, source, settings, removed),), (), (event,))

    change(destination, mirror, decide)
    return _result(mirror, Outcome.DONE, f"changed {'; '.join(differences)}", dry_run)


def _changed(
    record: MirrorRecord, source: Mapping[str, str], settings: Mapping[str, str], removed: Iterable[str]
) -> MirrorRecord:
    gone = set(removed)
    after = {key: value for key, value in {**record.settings, **settings}.items() if key not in gone}
    if not stored_settings(after, complete=False).auto_create_mirror_topics_enable and _FILTERS not in settings:
        after.pop(_FILTERS, None)
    check_change(stored_settings(record.settings), stored_settings(after))
    connection = {key: value for key, value in {**record.source, **source}.items() if key not in gone}
    return replace(record, source=connection, settings=after)


def _differences(before: MirrorRecord, after: MirrorRecord) -> list[str]:
    old, new = {**before.source, **before.settings}, {**after.source, **after.settings}
    return [
        f"{key} from {old.get(key, 'its default')} to {new.get(key, 'its default')}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    ]


def _result(mirror: str, outcome: Outcome, message: str, dry_run: bool) -> VerbResult:
    return VerbResult.of("config", mirror, [TopicResult(None, None, outcome, message)], dry_run=dry_run)
