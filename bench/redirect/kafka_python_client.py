"""Write and read numbered records with kafka-python: `python -m bench.redirect.kafka_python_client FILE`."""

from __future__ import annotations

import sys
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError

from bench.redirect.numbered import Program

#: Longer than it takes to join the group: kafka-python 3.0.12 may read nothing for good once a poll has ended within a
#: second join, which follows the first if that was faster than the topic's metadata.
_POLL_MS = 10_000


def _write(program: Program) -> None:
    settings = program.settings
    producer = KafkaProducer(**_config(program), acks="all")
    try:
        for number in program.numbers():
            text = str(number).encode()
            try:
                sent = producer.send(settings.topic, text, text, partition=number % settings.partitions)
            except KafkaError as error:
                program.refused(number, _text(error))
                if not error.retriable:
                    raise
                continue
            sent.add_callback(_delivered, program, number)
            sent.add_errback(_refused, program, number)
    finally:
        producer.close(timeout=10)


def _delivered(program: Program, number: int, place: Any) -> None:
    program.acknowledged(number, place.partition, place.offset)


def _refused(program: Program, number: int, error: Exception) -> None:
    program.refused(number, _text(error))


def _read(program: Program) -> None:
    own = {"group_id": program.settings.group, "enable_auto_commit": False, "auto_offset_reset": "earliest"}
    consumer = KafkaConsumer(program.settings.topic, **_config(program), **own)
    try:
        while not program.ended.is_set():
            found = consumer.poll(timeout_ms=_POLL_MS)
            for records in found.values():
                for record in records:
                    program.was_read(int(record.value), record.partition, record.offset)
            if found:
                _commit(program, consumer)
    finally:
        consumer.close(autocommit=False)


def _commit(program: Program, consumer: KafkaConsumer) -> None:
    try:
        consumer.commit()
    except KafkaError as error:
        program.failed("reader", _text(error))


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _config(program: Program) -> dict[str, Any]:
    config = program.settings.config
    found: dict[str, Any] = {
        "bootstrap_servers": [f"{host}:{port}" for host, port in config.bootstrap_servers],
        "security_protocol": config.security_protocol,
    }
    if config.tls is not None:
        found["ssl_cafile"] = program.settings.properties["ssl.truststore.location"]
        found["ssl_check_hostname"] = config.tls.verify_hostname
    if config.sasl_mechanism is not None:
        found["sasl_mechanism"] = config.sasl_mechanism
        found["sasl_plain_username"], found["sasl_plain_password"] = config.username, config.password
    return found


if __name__ == "__main__":
    Program(sys.argv).run(_write, _read)
