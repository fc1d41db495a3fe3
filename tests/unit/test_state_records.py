"""The stored form of records: fixed bytes for each kind, and nothing lost that a newer version wrote."""

import pickle
import subprocess
import sys
from dataclasses import replace

import pytest

from kmirror.errors import Reason
from kmirror.state.archive_proofs import Proof
from kmirror.state.assignment import Assignment, Recovery, SourceSeen
from kmirror.state.engine_findings import Lacking
from kmirror.state.event_records import Event, decode_event, encode_event
from kmirror.state.history_records import HistoryPoint, HistoryRecord
from kmirror.state.lane_change_record import LaneChangeRecord
from kmirror.state.record_kinds import Record, Removed, Unknown, decode, encode, encode_key, mirror_of
from kmirror.state.records import (
    PENDING_REBUILD,
    AtStop,
    DesiredState,
    EngineRecord,
    EngineState,
    Guard,
    Incarnation,
    LaneRowsRecord,
    Latencies,
    MirrorRecord,
    PartitionRecord,
    PartitionState,
    ProgressRecord,
    ProgressRow,
    Rebuild,
    RebuildStep,
    TopicOrigin,
    TopicRecord,
)
from kmirror.state.stored import UNREADABLE, Rows, read

MIRROR = MirrorRecord(
    "m", {"sasl.password": "${env:P}", "bootstrap.servers": "a:9092"}, {"topics.include": "orders"}, "Q1", "eve@ops", 17
)
SOURCE_ID = b"c291cmNlLXRvcGljLWlkIQ"
TOPIC = TopicRecord(
    "m", "orders", "orders", "c291cmNlLXRvcGljLWlkIQ", None, DesiredState.ACTIVE, 8, TopicOrigin.CREATED
)
RECOVERED = TopicRecord(
    "m",
    "logs",
    "logs",
    "c291cmNlLXRvcGljLWlkIQ",
    "bWlycm9yLXRvcGljLWlkIQ",
    DesiredState.ACTIVE,
    2,
    TopicOrigin.ADOPTED,
    recoveries={1: Recovery(3, 1000, 1150, True), 0: Recovery(1, rebuilds=Reason.SOURCE_DIVERGED)},
)
REBUILT = TopicRecord(
    "m",
    "users",
    "users",
    "c291cmNlLXRvcGljLWlkIQ",
    "bWlycm9yLXRvcGljLWlkIQ",
    DesiredState.ACTIVE,
    2,
    TopicOrigin.CREATED,
    PENDING_REBUILD,
    rebuild=Rebuild(
        Reason.SOURCE_TOPIC_RECREATED,
        RebuildStep.REPLACE,
        "users.kmirror-archive.2",
        99,
        {0: ((0, 5), (7, 9)), 1: ()},
        {"g": {0: 4}},
        proved={0: Proof("YXJjaGl2ZQ", 0, 13, 7, 0)},
    ),
    rebuilt_at_ms=98,
    archive="users.kmirror-archive.1",
    deferred={"retention.ms": "5"},
    inherited=("retention.ms",),
    settings={"cleanup.policy": "compact"},
    pause_id="p1",
    added_at_ms=97,
)
CLAIM = TopicRecord(
    "m", "pay", "pay", None, None, DesiredState.ACTIVE, 2, TopicOrigin.CREATED, "add", {}, first_offsets={0: 7, 1: 0}
)
PARTITION = PartitionRecord(
    "m",
    "orders",
    3,
    PartitionState.MIRRORING,
    99,
    guard=Guard(2**62, 0, 4, 12),
    first_offset=7,
    begun=True,
    aligned=True,
    lost_until=6,
    pause_id="p1",
)
FAILED = PartitionRecord(
    "m", "ordres-é", 0, PartitionState.FAILED, 99, Reason.CORRUPT_BATCH, "CRC wrong", 2, 70, 1, 70, None, True
)
STOPPED = PartitionRecord(
    "m",
    "orders",
    4,
    PartitionState.STOPPED,
    99,
    Reason.FAILED_OVER,
    last_mirrored_offset=7,
    at_stop=AtStop(
        98,
        8,
        source_offset=20,
        source_as_of_ms=90,
        source_answered=False,
        records_per_second=2.5,
        failure=Reason.DESTINATION_WRITTEN,
        failure_message="written",
        foreign_records=1,
        foreign_producer_id=-1,
    ),
)
PROGRESS = ProgressRecord(
    "m",
    0,
    "L",
    2,
    1,
    "host-1",
    4711,
    1000,
    (
        ProgressRow(
            "orders",
            0,
            10,
            12,
            0,
            9,
            950,
            PartitionState.MIRRORING,
            bytes_per_second=12.5,
            begun=True,
            aligned_to=5,
            lost_from=5,
            lost_until=7,
            again_from=8,
            again_until=9,
            last_epoch=3,
            source_seen_ms=800,
            recovery=2,
        ),
        ProgressRow(
            "orders",
            1,
            None,
            None,
            None,
            9,
            None,
            PartitionState.FAILED,
            Reason.LOOP,
            "round",
            failed_offset=9,
            records_per_second=1.5,
            offsets_per_second=7.5,
            caught_up_ms=940,
            records_copied=3,
            bytes_copied=300,
            source_lost_ms=935,
            offsets_to_fill=50_000,
        ),
    ),
    fills_by_transactions=True,
    taken=4,
    given_up=3,
    fetched_bytes=5000,
    throttled_ms=70,
    batches_copied=9,
    batches_taken_apart=2,
    batches_merged=7,
    offsets_filled=4,
    fetch_latencies=Latencies(tuple(range(14)), 2.5),
    pages=1,
    path_connections=32,
    path_bytes_per_second=64_000_000,
    connections_refused="no",
    seen_within_ms=3000,
)
CHANGE = LaneChangeRecord(
    "m",
    0,
    "L",
    2,
    4,
    (("orders", 1),),
    (
        Assignment(
            topic="pay",
            partition=0,
            source_topic="b.pay",
            source_topic_id="c291cmNlLXRvcGljLWlkIQ",
            destination_topic_id="bWlycm9yLXRvcGljLWlkIQ",
            producer_id=1 << 62,
            first_offset=7,
            begun=True,
            compared_end=12,
            recovery=Recovery(3, 5, 7),
            merges_batches=True,
            known_end=9,
            mismatch_offset=8,
            mismatch="8 is at 9",
            source_seen=SourceSeen(9, 1),
        ),
        Assignment(
            topic="pay",
            partition=1,
            source_topic="b.pay",
            source_topic_id=None,
            destination_topic_id=None,
            producer_id=5,
            producer_epoch=1,
            follows_truncation=True,
        ),
    ),
    False,
    (1, 3),
)
PAGE = LaneRowsRecord("m", 0, 1, "L", 2, 1, (ProgressRow("pay", 0, 3, 3, 0, 3, None, PartitionState.MIRRORING),))
ENGINE = EngineRecord(
    "m",
    "L",
    EngineState.RUNNING,
    "host-1",
    "boot",
    4711,
    5,
    "app-1",
    "local[*]",
    1,
    2,
    10_000,
    0,
    {10: Incarnation(2, 1)},
    {10: 4},
    throttle={10: 65536},
    connections=32,
    buffer_bytes=8_388_608,
)
LACKING = replace(ENGINE, lacking={"orders": Lacking(12, None, "no right")})
HISTORY = HistoryRecord(
    "m",
    489_000,
    (
        HistoryPoint(60, 90, 1, 700, 100.5, 0.375, 2, 1),
        HistoryPoint(120, None, 3, None, None, None, 0, 3, "NO_WORKERS"),
    ),
)

STORED: list[tuple[Record, bytes, bytes]] = [
    (
        MIRROR,
        b'["mirror","m"]',
        b'{"created_at_ms":17,"created_by":"eve@ops","discovery_ended":false,"paused":false,'
        b'"settings":{"topics.include":"orders"},'
        b'"source":{"bootstrap.servers":"a:9092","sasl.password":"${env:P}"},"source_cluster_id":"Q1","v":1}',
    ),
    (
        TOPIC,
        b'["topic","m","orders"]',
        b'{"desired":"ACTIVE","origin":"CREATED","partitions":8,"source_topic":"orders","source_topic_id":"c291cmNlLXRvcGljLWlkIQ","v":1}',
    ),
    (
        CLAIM,
        b'["topic","m","pay"]',
        b'{"deferred":{},"desired":"ACTIVE","first_offsets":{"0":7,"1":0},"origin":"CREATED","partitions":2,'
        b'"pending_operation":"add","source_topic":"pay","v":1}',
    ),
    (
        RECOVERED,
        b'["topic","m","logs"]',
        b'{"desired":"ACTIVE","destination_topic_id":"bWlycm9yLXRvcGljLWlkIQ","origin":"ADOPTED","partitions":2,'
        b'"recoveries":{"0":{"number":1,"rebuilds":"SOURCE_DIVERGED","trims":false},'
        b'"1":{"lost_from":1000,"lost_until":1150,"number":3,"trims":true}},'
        b'"source_topic":"logs","source_topic_id":"c291cmNlLXRvcGljLWlkIQ","v":1}',
    ),
    (
        REBUILT,
        b'["topic","m","users"]',
        b'{"added_at_ms":97,"archive":"users.kmirror-archive.1","deferred":{"retention.ms":"5"},"desired":"ACTIVE",'
        b'"destination_topic_id":"bWlycm9yLXRvcGljLWlkIQ","inherited":["retention.ms"],"origin":"CREATED",'
        b'"partitions":2,"pause_id":"p1","pending_operation":"rebuild","rebuild":{"archive":"users.kmirror-archive.2",'
        b'"groups":{"g":{"0":4}},"proved":{"0":["YXJjaGl2ZQ",0,13,7,0]},'
        b'"ranges":{"0":[[0,5],[7,9]],"1":[]},"reason":"SOURCE_TOPIC_RECREATED",'
        b'"since_ms":99,"step":"REPLACE"},"rebuilt_at_ms":98,"settings":{"cleanup.policy":"compact"},'
        b'"source_topic":"users","source_topic_id":"c291cmNlLXRvcGljLWlkIQ","v":1}',
    ),
    (
        PARTITION,
        b'["partition","m","orders",3]',
        b'{"aligned":true,"begun":true,"first_offset":7,"guard":{"coordinator_epoch":4,"filled_offsets":12,"producer_epoch":0,"producer_id":4611686018427387904},'
        b'"initial_copy_complete":false,"lost_until":6,"pause_id":"p1","retry_attempt":0,"state":"MIRRORING","state_time_ms":99,"v":1}',
    ),
    (
        FAILED,
        b'["partition","m","ordres-\\u00e9",0]',
        b'{"aligned":false,"begun":false,"failed_offset":70,"initial_copy_complete":true,"last_mirrored_epoch":1,"last_mirrored_offset":70,'
        b'"message":"CRC wrong","reason":"CORRUPT_BATCH","retry_attempt":2,"state":"FAILED","state_time_ms":99,"v":1}',
    ),
    (
        STOPPED,
        b'["partition","m","orders",4]',
        b'{"aligned":false,"at_stop":{"failure":"DESTINATION_WRITTEN","failure_message":"written",'
        b'"foreign_is_complete":true,"foreign_producer_id":-1,"foreign_records":1,"log_end":8,"records_per_second":2.5,'
        b'"source_answered":false,"source_as_of_ms":90,"source_offset":20,"time_ms":98},"begun":false,"initial_copy_complete":false,'
        b'"last_mirrored_offset":7,"reason":"FAILED_OVER","retry_attempt":0,"state":"STOPPED","state_time_ms":99,"v":1}',
    ),
    (
        PROGRESS,
        b'["progress","m",0]',
        b'{"attempt":1,"batches_copied":9,"batches_merged":7,"batches_taken_apart":2,"columns":["topic","partition","source_offset",'
        b'"source_high_watermark","source_log_start",'
        b'"destination_offset","last_timestamp_ms","state","reason","message","bytes_per_second","begun","aligned_to",'
        b'"lost_from","lost_until","again_from","again_until","last_epoch","source_seen_ms","retry_attempt","recovery",'
        b'"failed_offset","records_per_second","offsets_per_second","caught_up_ms","records_copied","bytes_copied","source_lost_ms","offsets_to_fill"],"connections_refused":"no",'
        b'"fetch_latencies":[[0,1,2,3,4,5,6,7,8,9,10,11,12,13],2.5],'
        b'"fetched_bytes":5000,"fills_by_transactions":true,"generation":2,"given_up":3,"host":"host-1","lease_id":"L",'
        b'"offsets_filled":4,"pages":1,"path_bytes_per_second":64000000,"path_connections":32,"pid":4711,"produce_latencies":[[0,0,0,0,0,0,0,0,0,0,0,0,0,0],0.0],'
        b'"rows":[["orders",0,10,12,0,9,950,"MIRRORING",null,null,12.5,true,5,5,7,8,9,3,800,0,2,null,null,null,null,0,0,null,null],'
        b'["orders",1,null,null,null,9,null,"FAILED","LOOP","round",0.0,false,null,null,null,null,null,null,null,0,null,9,'
        b"1.5,7.5,940,3,300,935,50000]],"
        b'"seen_within_ms":3000,"taken":4,"throttled_ms":70,"time_ms":1000,"v":1}',
    ),
    (
        PAGE,
        b'["rows","m",0,1]',
        b'{"attempt":1,"columns":["topic","partition","source_offset","source_high_watermark","source_log_start",'
        b'"destination_offset","last_timestamp_ms","state","reason","message","bytes_per_second","begun","aligned_to",'
        b'"lost_from","lost_until","again_from","again_until","last_epoch","source_seen_ms","retry_attempt","recovery",'
        b'"failed_offset","records_per_second","offsets_per_second","caught_up_ms","records_copied","bytes_copied","source_lost_ms","offsets_to_fill"],'
        b'"generation":2,"lease_id":"L","rows":[["pay",0,3,3,0,3,null,"MIRRORING",null,null,0.0,false,null,null,null,null,'
        b'null,null,null,0,null,null,null,null,null,0,0,null,null]],"v":1}',
    ),
    (
        CHANGE,
        b'["change","m",0]',
        b'{"columns":["topic","partition","source_topic","source_topic_id","destination_topic_id","producer_id",'
        b'"producer_epoch","first_offset","begun","compared_end","recovery","follows_truncation","merges_batches","known_end","mismatch_offset",'
        b'"mismatch","source_seen"],"generation":2,'
        b'"given_up":[["orders",1]],"lease_id":"L","predecessor_may_write":false,"revision":4,'
        b'"taken":[["pay",0,"b.pay","c291cmNlLXRvcGljLWlkIQ","bWlycm9yLXRvcGljLWlkIQ",4611686018427387904,0,7,true,12,'
        b'{"lost_from":5,"lost_until":7,"number":3,"trims":false},false,true,9,8,"8 is at 9",'
        b'{"last_stable_offset":9,"time_ms":1}],'
        b'["pay",1,"b.pay",null,null,5,1,0,false,null,null,true,false,null,null,null,null]],"unsettled_lanes":[1,3],"v":1}',
    ),
    (
        ENGINE,
        b'["engine","m"]',
        b'{"application_id":"app-1","boot_id":"boot","buffer_bytes":8388608,"connections":32,"host":"host-1","lanes":{"10":[2,1]},"last_seen_ms":2,'
        b'"lease_id":"L","master":"local[*]","pid":4711,"pid_start_time":5,"revisions":{"10":4},"settle_ms":0,"since_ms":1,'
        b'"state":"RUNNING","throttle":{"10":65536},"ttl_ms":10000,"v":1}',
    ),
    (
        HISTORY,
        b'["history","m",489000]',
        b'{"columns":["second","lag","lag_unknown","time_lag_ms","bytes_per_second","records_per_second","failed",'
        b'"not_copied","phase"],"points":[[60,90,1,700,100.5,0.375,2,1,null],[120,null,3,null,null,null,0,3,"NO_WORKERS"]],"v":1}',
    ),
]
KINDS = [record.key[0] for record, _, _ in STORED]


@pytest.mark.parametrize(("record", "key", "value"), STORED, ids=KINDS)
def test_a_record_has_this_stored_form_and_comes_back_from_it(record: Record, key: bytes, value: bytes) -> None:
    assert encode(record) == (key, value)
    assert mirror_of(key) == record.key[1]
    assert decode(key, value) == record
    assert pickle.loads(pickle.dumps(record)) == record


@pytest.mark.parametrize(("record", "key", "value"), STORED, ids=KINDS)
def test_fields_of_a_newer_version_ride_along(record: Record, key: bytes, value: bytes) -> None:
    newer = value.replace(b'"v":1}', b'"v":1,"zoo":{"a":[1,null]}}')
    found = decode(key, newer)
    assert not isinstance(found, Removed | Unknown)
    assert found.extra == {"zoo": {"a": [1, None]}}
    assert encode(found) == (key, newer)


ENGINE_KEY = b'["engine","heartbeats"]'
ENGINE_VALUE = (
    b'{"boot_id":"b","extra_of_later":{"x":1},"host":"h","lanes":{"0":[1,0]},"last_seen_ms":%b,"lease_id":"L","pid":7,'
    b'"pid_start_time":1,"settle_ms":0,"since_ms":1,"state":"RUNNING","ttl_ms":5000,"v":1}'
)


@pytest.mark.parametrize(
    "time", [b"17", b"18", b"017", b"-3", b"1.5", b"null", b'"19"', b"9" * 40, b"1e3", b" 20", b""]
)
def test_a_heartbeat_is_decoded_after_another_one_as_it_is_by_itself(time: bytes) -> None:
    for key in (ENGINE_KEY, b'["engine","later"]'):
        alone = decode(key, ENGINE_VALUE % time)
        decode(key, ENGINE_VALUE % b"16")
        again = decode(key, ENGINE_VALUE % time)
        assert again == alone
        if isinstance(again, EngineRecord):
            assert (again.last_seen_ms, again.extra) == (int(time), {"extra_of_later": {"x": 1}})
        other = decode(key, (ENGINE_VALUE % b"16").replace(b'"pid":7', b'"pid":8'))
        assert isinstance(other, EngineRecord)
        assert other.pid == 8
    assert decode(ENGINE_KEY, None) == Removed(("engine", "heartbeats"))
    nested = ENGINE_VALUE.replace(b'{"x":1}', b'{"last_seen_ms":%b,"y":1}')
    for inner in (b"5", b"6"):
        found = decode(ENGINE_KEY, nested % (inner, b"16"))
        assert isinstance(found, EngineRecord)
        assert found.last_seen_ms == 16


def test_fields_of_a_newer_version_ride_along_inside_the_guard() -> None:
    key, value = encode(PARTITION)
    newer = value.replace(b'"filled_offsets":12', b'"filled_offsets":12,"hint":true')
    found = decode(key, newer)
    assert isinstance(found, PartitionRecord)
    assert found.guard is not None
    assert found.guard.extra == {"hint": True}
    assert b'"hint":true' in encode(found)[1]


def test_what_an_older_version_stored_says_nothing_of_newer_fields() -> None:
    partition = decode(
        b'["partition","m","orders",3]',
        b'{"initial_copy_complete":false,"retry_attempt":0,"state":"MIRRORING","state_time_ms":99,"v":1}',
    )
    assert partition == PartitionRecord("m", "orders", 3, PartitionState.MIRRORING, 99)
    assert partition.pause_id is None
    assert (partition.first_offset, partition.begun, partition.aligned) == (None, False, False)
    progress = decode(
        b'["progress","m",0]',
        b'{"attempt":1,"columns":["topic","partition","source_offset","source_high_watermark","source_log_start",'
        b'"destination_offset","last_timestamp_ms","state","reason","message","bytes_per_second"],"generation":2,'
        b'"host":"host-1","lease_id":"L","pid":4711,"rows":[["orders",0,10,12,0,9,950,"MIRRORING",null,null,12.5]],'
        b'"time_ms":1000,"v":1}',
    )
    assert isinstance(progress, ProgressRecord)
    assert not progress.fills_by_transactions
    assert [(row.begun, row.aligned_to) for row in progress.rows] == [(False, None)]


@pytest.mark.parametrize(("record", "key", "value"), STORED, ids=KINDS)
def test_a_tombstone_names_what_is_gone(record: Record, key: bytes, value: bytes) -> None:
    assert encode_key(record.key) == key
    assert decode(key, None) == Removed(record.key)


@pytest.mark.parametrize(
    ("key", "value", "names", "problem"),
    [
        (b'["engine","m"]', b'{"v":2}', ("engine", "m"), "schema version is 2"),
        (b'["engine","m"]', b"{}", ("engine", "m"), "schema version is None"),
        (b'["zebra","m",1]', b'{"v":1}', ("zebra", "m", 1), "'zebra' are not known"),
        (b'["partition","m","t",0]', b'{"v":1,"state":"ASLEEP"}', ("partition", "m", "t", 0), "ASLEEP"),
        (b'["partition","m"]', b'{"v":1}', ("partition", "m"), "'topic'"),
        (b'["partition","m","t","x"]', encode(PARTITION)[1], ("partition", "m", "t", "x"), "'x'"),
        (b'["progress","m",0]', b'{"v":1,"columns":["topic"],"rows":[["t"]]}', ("progress", "m", 0), "lease_id"),
        (
            b'["progress","m",0]',
            encode(PROGRESS)[1].replace(b'[["orders",0,', b'[["orders",'),
            ("progress", "m", 0),
            "",
        ),
        (b'["engine","m"]', encode(ENGINE)[1].replace(b"[2,1]", b"[2]"), ("engine", "m"), ""),
        (b'["engine","m"]', encode(ENGINE)[1].replace(b"4711", b"true"), ("engine", "m"), "'pid' is True"),
        *(
            (b'["topic","m","orders"]', encode(TOPIC)[1].replace(SOURCE_ID, planted), ("topic", "m", "orders"), "")
            for planted in (b"%%%", b"AAAA", b"../../etc/passwd", b"AAAAAAAAAAAAAAAAAAAAAAAA")
        ),
        (b'["mirror","m"]', b'{"v":1,"source":{"a":1}}', ("mirror", "m"), "'source'"),
        (b'["mirror","m"]', b"[" * 100_000, ("mirror", "m"), ""),
        (b'["mirror","m"]', b"\xff", ("mirror", "m"), ""),
        (b'["mirror","m"]', b"", ("mirror", "m"), ""),
        (b'["mirror",null]', b"x", (), "not an array"),
        (b"[]", b"x", (), "not an array"),
        (b"mirror", b"x", (), "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_kept_and_says_why(
    key: bytes, value: bytes, names: tuple[str | int, ...], problem: str
) -> None:
    found = decode(key, value)
    assert isinstance(found, Unknown)
    assert found.key == names
    assert problem in found.problem


def planted(record: Record, was: bytes, **now: int) -> tuple[bytes, bytes]:
    """Return a record's key and value with another number, as any client that may write the topic can store it."""
    key, value = encode(record)
    ((name, number),) = now.items()
    before, after = b'"%s":%s' % (name.encode(), was), b'"%s":%d' % (name.encode(), number)
    assert before in value
    return key, value.replace(before, after)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        planted(TOPIC, b"8", partitions=100_001),
        planted(TOPIC, b"8", partitions=-1),
        (b'["partition","m","orders",100001]', encode(PARTITION)[1]),
        (b'["partition","m","orders",-1]', encode(PARTITION)[1]),
        planted(PARTITION, b"7", first_offset=1 << 63),
        planted(PARTITION, b"4611686018427387904", producer_id=1 << 63),
        planted(PARTITION, b"0", producer_epoch=1 << 15),
        planted(PARTITION, b"4", coordinator_epoch=1 << 31),
        planted(PROGRESS, b"1", pages=100_001),
        planted(ENGINE, b"10000", ttl_ms=600_001),
        planted(ENGINE, b"0", settle_ms=600_001),
        planted(ENGINE, b"0", settle_ms=-1),
        *(
            (encode(record)[0], encode(record)[1].replace(old, new))
            for record, old, new in (
                (CLAIM, b'{"0":7', b'{"100001":7'),
                (CLAIM, b'{"0":7', b'{"-1":7'),
                (ENGINE, b'{"10":4}', b'{"9223372036854775808":4}'),
                (LACKING, b"[12,", b"[100001,"),
                (LACKING, b"[12,", b"[-1,"),
            )
        ),
    ],
)
def test_numbers_that_would_be_counted_up_to_or_waited_for_are_unreadable(key: bytes, value: bytes) -> None:
    assert (key, value) not in [stored[1:] for stored in STORED]
    assert isinstance(decode(key, value), Unknown)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "é", "a" * 250, "a\n", "*"])
def test_a_topic_that_kafka_cannot_have_is_unreadable(name: str) -> None:
    assert isinstance(decode(*encode(replace(TOPIC, topic=name))), Unknown)
    assert isinstance(decode(*encode(replace(TOPIC, source_topic=name))), Unknown)


@pytest.mark.parametrize("name", ["a", "...", "a.b_c-D", "a" * 249])
def test_a_topic_that_kafka_can_have_is_read(name: str) -> None:
    record = replace(TOPIC, topic=name, source_topic=name)
    assert decode(*encode(record)) == record


CELLS: tuple[object, ...] = (
    None,
    0,
    1,
    -1,
    1.5,
    1e300,
    True,
    "",
    "MIRRORING",
    "LOOP",
    [],
    {},
    100_000,
    100_001,
    (1 << 31) - 1,
    1 << 31,
    (1 << 63) - 1,
    1 << 63,
    -(1 << 63),
    -(1 << 64),
)


@pytest.mark.parametrize("cell", CELLS, ids=repr)
@pytest.mark.parametrize("beside", [None, *ProgressRow._fields])
def test_rows_are_read_by_columns_as_one_by_one(cell: object, beside: str | None) -> None:
    """A cell of any kind, in a column whose other cell is sound; or, `beside` None, in each of them alone."""
    sound = PROGRESS.rows[1]._asdict()
    for name in ProgressRow._fields if beside is None else (beside,):
        objects = [sound | {name: cell}, *([sound] if beside is not None else ())]
        rows = Rows(list(sound), [list(one.values()) for one in objects])
        try:
            expected: object = read_tuples(objects)
        except UNREADABLE as error:
            expected = type(error)
        try:
            found: object = read_tuples(rows)
        except UNREADABLE as error:
            found = type(error)
        assert (found, str(found)) == (expected, str(expected)), name


def read_tuples(rows: object) -> tuple[ProgressRow, ...]:
    names = {"mirror": "m", "lane": 0, "page": 0, "lease_id": "l", "generation": 1, "attempt": 0}
    return read(LaneRowsRecord, {**names, "rows": rows}).rows


def test_an_event_has_this_stored_form_and_comes_back_from_it() -> None:
    event = Event(5, "m", "pause", "eve@ops", "DONE", {"topics": ["orders"]})
    key, value = encode_event(event)
    assert (key, value) == (
        b"m",
        b'{"actor":"eve@ops","details":{"topics":["orders"]},"mirror":"m","result":"DONE","time_ms":5,"v":1,"what":"pause"}',
    )
    assert decode_event(key, value, 9) == event
    assert decode_event(key, value.replace(b'"v":1', b'"v":1,"new":0'), 9) == event
    newer = decode_event(key, value.replace(b'"v":1', b'"v":2'), 9)
    assert (newer.time_ms, newer.mirror, newer.what, newer.result) == (9, "m", "unreadable", "UNREADABLE")
    assert newer.details == {"problem": "its schema version is 2, this kmirror knows 1"}
    assert decode_event(b"\xff", b"{", 9).what == "unreadable"


def test_workers_import_the_records_without_anything_heavy() -> None:
    heavy = "{'confluent_kafka', 'pyspark', 'click', 'rich', 'kafka.protocol'}"
    code = f"import sys, kmirror.state.records, kmirror.state.event_records; print(sorted({heavy} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "[]\n"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b'["' + b"k" * 100_000 + b'","m"]', b"{}"),
        (b'["mirror","m"]', b'{"v":1,"at":1' + b"0" * 100_000 + b".0}"),
        (b'["mirror","m"]', b'{"v":1,"settings":"' + b"s" * 100_000 + b'"}'),
    ],
)
def test_why_a_record_is_unreadable_is_kept_in_few_words(key: bytes, value: bytes) -> None:
    read = decode(key, value)
    assert isinstance(read, Unknown)
    assert len(read.problem) < 1000
