"""A Spark Structured Streaming job: a topic's values into files, exactly once by its checkpoint.

    python spark_stream.py JARS

Each line of its input is a JSON object with `bootstrap`, `topic`, `checkpoint`, `files` and `starting`: the job is
started with that, reads what is available, and ends. The answer is a line with all values in the files, or the `error`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession


def run(spark: SparkSession, order: Mapping[str, str]) -> object:
    """Run the job once."""
    source = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", order["bootstrap"])
        .option("subscribe", order["topic"])
        .option("startingOffsets", order["starting"])
        .load()
    )
    query = (
        source.selectExpr("CAST(value AS STRING) AS value")
        .coalesce(1)
        .writeStream.format("text")
        .option("checkpointLocation", order["checkpoint"])
        .trigger(availableNow=True)
        .start(order["files"])
    )
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        return {"error": str(error)}
    return [row.value for row in spark.read.text(order["files"]).collect()]


def main(jars: str) -> None:
    """Run the job once for each line of input."""
    builder = SparkSession.builder.master("local[1]").config("spark.jars", jars).config("spark.ui.enabled", "false")
    spark = builder.getOrCreate()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(spark, json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
