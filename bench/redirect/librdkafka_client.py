"""Write and read numbered records with librdkafka: `python -m bench.redirect.librdkafka_client FILE`."""

from __future__ import annotations

import sys
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer

from bench.redirect.numbered import Program
from tests.support.librdkafka import librdkafka


def _write(program: Program) -> None:
    settings = program.settings

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            program.refused(int(message.value()), str(error))
        else:
            program.acknowledged(int(message.value()), message.partition(), message.offset())

    producer = Producer({**_config(program, "writer"), "enable.idempotence": True})
    for number in program.numbers():
        text = str(number)
        try:
            producer.produce(settings.topic, text, text, number % settings.partitions, on_delivery=delivered)
        except (KafkaException, BufferError) as error:
            program.refused(number, str(error))
            if isinstance(error, KafkaException) and error.args[0].fatal():
                raise
        producer.poll(0)
    producer.flush(10)


def _read(program: Program) -> None:
    own = {"group.id": program.settings.group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}

    def committed(error: Any, _: Any) -> None:
        if error is not None:
            program.failed("reader", str(error))

    consumer = Consumer({**_config(program, "reader"), **own, "on_commit": committed})
    try:
        consumer.subscribe([program.settings.topic])
        while not program.ended.is_set():
            message = consumer.poll(0.2)
            if message is None:
                continue
            if error := message.error():
                program.failed("reader", str(error))
                if error.fatal():
                    raise KafkaException(error)
                continue
            program.was_read(int(message.value()), message.partition(), message.offset())
            consumer.commit(message, asynchronous=True)
    finally:
        consumer.close()


def _config(program: Program, side: str) -> dict[str, Any]:
    return {
        **librdkafka(program.settings.config),
        **program.settings.librdkafka,
        "error_cb": lambda error: program.failed(side, str(error)),
        "log_level": 0,
    }


if __name__ == "__main__":
    Program(sys.argv).run(_write, _read)
