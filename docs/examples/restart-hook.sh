#!/usr/bin/env bash
# Make connected clients let go of the old cluster after a move: restart all of its brokers at once. For --after of
# promote, where everything that applications use on the old cluster has moved:
#
#   restart-hook.sh STOP START
#
# STOP is a command line that stops all brokers of the old cluster, at the same time; START starts them again, 20 seconds
# later (or DOWN_SECONDS, from the environment). Give --hook-timeout more time than all of it takes. Needs bash and
# python3.
#
# after: if the verb has done everything, prints START, then runs STOP and START. If it is killed in between, the
# brokers are down, and START is what is left to do.
set -euo pipefail
stop=$1 start=$2

read -r when exit_code < <(python3 -c '
import json, sys
given = json.load(sys.stdin)
print(given["when"], given.get("exitCode", "-"))
')

if [[ $when == before ]]; then
    exit 0
fi
if [[ $exit_code != 0 ]]; then
    echo "the old cluster is not restarted: the command ends with $exit_code"
    exit 0
fi
echo "stopping the old cluster; to start it again: $start"
status=0
bash -c "$stop" || status=$?
# a client that finds the old brokers again before its door leads elsewhere stays with them
sleep "${DOWN_SECONDS:-20}"
bash -c "$start"
echo "the old cluster was restarted"
exit "$status"
