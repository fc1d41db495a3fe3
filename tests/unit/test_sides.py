"""An error of one cluster is never shown as one of the other: every error code of every request, on both sides."""

from __future__ import annotations

from itertools import product

import pytest

from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.driver import source_monitor
from kmirror.engine.histories import identity_check, inspection
from kmirror.engine.histories.judge import Fail, Trouble
from kmirror.engine.histories.section_reader import Unreadable
from kmirror.engine.lane.brokers import background_requests
from kmirror.engine.lane.partition.refusals import append_refused, fetch_refused
from kmirror.errors import LINK_REFUSED, BrokerError, KmirrorError, OutcomeUnknown, Reason, UnreachableError
from tests.support.judging import ASSIGNMENT

#: Kafka 4.3 has codes up to 133; brokers may send newer ones.
CODES = range(-1, 160)
PARTITION = TopicPartition("orders", 0)
GONE = (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID)
OF_SOURCE = {reason for reason in Reason if reason.startswith("SOURCE_")} | {Reason.PARTITIONS_DECREASED}
OF_DESTINATION = {reason for reason in Reason if reason.startswith("DESTINATION_")} | {Reason.RECORD_REJECTED}


def error(code: int) -> BrokerError:
    return BrokerError(code, "NAME", "asking")


@pytest.mark.parametrize("code", CODES)
def test_what_a_source_answers_is_no_trouble_of_the_destination(code: int) -> None:
    found: list[Trouble | Fail] = [
        fetch_refused(PARTITION, code),
        inspection._partition_trouble(PARTITION, code, Reason.SOURCE_UNREACHABLE, "READ"),
        inspection._tail_trouble(ASSIGNMENT, Unreadable("source", error(code))),
        inspection._link_trouble(error(code), Reason.SOURCE_UNREACHABLE),
    ]
    at = identity_check.AT_SOURCE
    found += [identity_check.topic_trouble(at, ASSIGNMENT, code, other) for other in (None, code, *GONE)]
    assert not {one.reason for one in found} & OF_DESTINATION


@pytest.mark.parametrize("code", CODES)
def test_what_a_destination_answers_is_no_trouble_of_the_source(code: int) -> None:
    found: list[Trouble | Fail | None] = [
        append_refused(PARTITION, 7, code, "why"),
        inspection._partition_trouble(PARTITION, code, Reason.DESTINATION_UNREACHABLE, "READ"),
        inspection._tail_trouble(ASSIGNMENT, Unreadable("destination", error(code))),
        inspection._link_trouble(error(code), Reason.DESTINATION_UNREACHABLE),
        identity_check.destination_trouble(error(code), "trimming"),
        background_requests._trim_trouble(PARTITION, code),
    ]
    at = identity_check.AT_DESTINATION
    found += [identity_check.topic_trouble(at, ASSIGNMENT, code, other) for other in (None, code, *GONE)]
    assert not {one.reason for one in found if one is not None} & OF_SOURCE


@pytest.mark.parametrize("reason", [None, *Reason])
def test_a_login_that_the_destination_refuses_is_no_refused_link(reason: Reason | None) -> None:
    found = inspection._link_trouble(UnreachableError("no", None, reason), Reason.DESTINATION_UNREACHABLE)
    assert found.message == "the destination: no"
    assert found.reason not in LINK_REFUSED


def test_no_error_of_the_destination_ends_a_look_at_the_source() -> None:
    errors: list[Exception] = [error(code) for code in CODES]
    errors += [kind("no", None, reason) for kind, reason in product((KmirrorError, UnreachableError), (None, *Reason))]
    for one in (*errors, OutcomeUnknown("no answer")):
        with pytest.raises(source_monitor._DestinationSilent), source_monitor._destination():
            raise one
