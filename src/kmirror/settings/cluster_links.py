"""Files of Confluent's cluster links (`kafka-cluster-links --config-file`), which are those of a mirror in other words.

Where a file is silent a link's defaults hold; where they differ from kmirror's they are taken over, and it is said.
"""

from __future__ import annotations

from collections.abc import Mapping

from kmirror.settings.conversion import Conversion, Given, convert

_NOTE = ": a link's default, the file does not set it"
_SYNC, _FILTERS = "consumer.offset.sync.enable", "consumer.offset.group.filters"
_GROUPS = ("groups.include", "groups", "mirror.groups.include")


def link_conversion(properties: Mapping[str, str]) -> Conversion:
    """Return the mirror that a link's file describes, and what became of each key."""
    given = [Given(key, key, value) for key, value in properties.items()]
    if _SYNC not in properties:
        given.append(Given(_SYNC, _SYNC, "false", _NOTE))
    elif properties[_SYNC].strip().lower() == "true" and not {_FILTERS, *_GROUPS} & properties.keys():
        given.append(Given(_FILTERS, _FILTERS, "", f"{_NOTE}, and no group is synced"))
    return convert(given)
