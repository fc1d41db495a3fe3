#!/usr/bin/env bash
# Point a name at the cluster that is in charge after a verb: for --before and --after of promote, failover, switchover
# and failback.
#
#   dns-hook.sh NAME HOSTS
#
# HOSTS is a file in the format of /etc/hosts that your DNS server serves, such as one of `addn-hosts` of dnsmasq. Set
# DNS_PID_FILE to the file with the server's process id, and it is told to read HOSTS again. Needs bash and python3.
#
# before: checks that HOSTS can be replaced; if not, the verb changes nothing. after: if the verb has done everything,
# NAME gets the addresses of the destination's brokers; of failback, which makes the destination a copy, those of its
# source.
set -euo pipefail
name=$1 hosts=$2

read -r when exit_code servers < <(python3 -c '
import json, sys
given = json.load(sys.stdin)
side = "source" if given["verb"] == "failback" else "destination"
print(given["when"], given.get("exitCode", "-"), given[side]["bootstrapServer"])
')

new=$(mktemp "$(dirname "$hosts")/.hosts.XXXXXX")
trap 'rm -f "$new"' EXIT
if [[ $when == before ]]; then
    [[ -w $hosts ]] || { echo "$hosts cannot be written"; exit 1; }
    exit 0
fi
if [[ $exit_code != 0 ]]; then
    echo "$name stays where it is: the command ends with $exit_code"
    exit 0
fi

awk -v name="$name" '{ for (i = 2; i <= NF; i++) if ($i == name) next } 1' "$hosts" > "$new"
IFS=, read -ra brokers <<< "$servers"
for broker in "${brokers[@]}"; do
    host=${broker%:*}
    address=$(getent ahosts "${host//[\[\]]/}" | awk 'NR == 1 { print $1 }')
    [[ -n $address ]] || { echo "$host has no address"; exit 1; }
    echo "$address $name" >> "$new"
done
chmod --reference="$hosts" "$new"
mv "$new" "$hosts"
if [[ -n ${DNS_PID_FILE:-} ]]; then
    kill -HUP "$(cat "$DNS_PID_FILE")"
fi
echo "$name is at $servers now"
