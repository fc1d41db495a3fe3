"""A program: have the test process run one of Kafka's tools, like a script of that name."""

import json
import os
import socket
import sys

if __name__ == "__main__":
    address, tool, *words = sys.argv[1:]
    # the test process has another working directory
    arguments = [os.path.abspath(word) if os.path.isfile(word) else word for word in words]
    typed = sys.stdin.read() if tool == "kafka-console-producer.sh" else ""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        connection.sendall(json.dumps([tool, arguments, typed]).encode() + b"\n")
        with connection.makefile("rb") as answer:
            code, out, err = json.loads(answer.read())
    sys.stdout.write(out)
    sys.stderr.write(err)
    sys.exit(code)
