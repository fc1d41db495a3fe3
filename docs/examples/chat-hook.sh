#!/usr/bin/env bash
# Say in a chat what kmirror does: for --before and --after of a verb, and for --on-event of run.
#
# CHAT is a file to which lines are written, such as the `in` of a channel of the IRC client ii; without it they go to
# the system's log with logger. For a chat with a web address, replace `say` by a call of your own program. Needs bash
# and python3.
set -euo pipefail

say() {
    if [[ -n ${CHAT:-} ]]; then cat >> "$CHAT"; else logger -t kmirror; fi
}

python3 -c '
import json, sys

given = json.load(sys.stdin)
if given["when"] == "on-event":
    for event in given["events"]:
        print("kmirror %(mirror)s: %(what)s %(result)s" % event)
    if given["dropped"]:
        print("kmirror: and %d more events" % given["dropped"])
    sys.exit()
what = "%(verb)s of %(mirror)s by %(operator)s" % given
topics = "%d topics" % len(given["topics"])
if given["when"] == "before":
    print("kmirror: %s begins: %s, to %s" % (what, topics, given["destination"]["bootstrapServer"]))
elif given["error"]:
    print("kmirror: %s ended with %d: %s" % (what, given["exitCode"], given["error"]["message"]))
else:
    print("kmirror: %s is done: %s" % (what, topics))
' | say
