#!/usr/bin/env bash
# Move topics to another Kafka cluster: mirror, catch up, compare, promote. Each step gates the next by its exit code.
#
# Set: KMIRROR_BOOTSTRAP_SERVER (the destination), MIRROR, SOURCE_CONFIG (a file of client properties of the source),
# TOPICS (a list, or @FILE). Optional: KMIRROR_EXPECT_CLUSTER_ID, COPY_TIMEOUT, PROMOTE_TIMEOUT, EVIDENCE (a folder).
#
# Ends with 0 when every topic is promoted, at once if it already was; with 5 when trying again later may help;
# otherwise with kmirror's exit code of the failed step. Run again, it continues where it stopped; the reports of
# earlier runs stay in EVIDENCE.
set -euo pipefail

: "${KMIRROR_BOOTSTRAP_SERVER:?}" "${MIRROR:?}" "${SOURCE_CONFIG:?}" "${TOPICS:?}"
copy_timeout=${COPY_TIMEOUT:-6h} promote_timeout=${PROMOTE_TIMEOUT:-30m} evidence=${EVIDENCE:-.}
same_cluster=(${KMIRROR_EXPECT_CLUSTER_ID:+--expect-cluster-id "$KMIRROR_EXPECT_CLUSTER_ID"})

engine=
finish() {
    local code=$?
    if [[ -n $engine ]]; then
        kill -TERM "$engine" 2>/dev/null || true
        wait "$engine" || true
    fi
    exit "$code"
}
trap finish EXIT

step() {
    local verb=$1 code=0
    shift
    echo "--- kmirror $verb $*"
    kmirror "$verb" --mirror "$MIRROR" ${same_cluster[@]+"${same_cluster[@]}"} "$@" || code=$?
    case $code in
        0) return 0 ;;
        3) echo "refused: $verb; nothing was changed by it" >&2 ;;
        5) echo "not yet: $verb; run this job again later" >&2 ;;
        6) echo "a cluster is out of reach, or refuses us: $verb" >&2 ;;
        7) echo "source and destination differ: do not move these topics" >&2 ;;
        *) echo "failed with $code: $verb" >&2 ;;
    esac
    exit "$code"
}

# Promoted by an earlier run of this job? (3: there is no such mirror or topic yet)
if kmirror wait --mirror "$MIRROR" --topics "$TOPICS" --for stopped --timeout 1s >/dev/null 2>&1; then
    echo "promoted already"
    exit 0
fi

step create --mirror-config "$SOURCE_CONFIG" --if-not-exists
step add --topics "$TOPICS"

# An engine of this job's own; where one is in charge already, this one ends at once, refused (3), and that is fine.
kmirror run --mirror "$MIRROR" >>"$evidence/engine.log" 2>&1 &
engine=$!

step wait --topics "$TOPICS" --for caught-up --timeout "$copy_timeout"
step verify --topics "$TOPICS" --report "$evidence/verify.json"
step promote --topics "$TOPICS" --timeout "$promote_timeout" --report "$evidence/promote.json"
step wait --topics "$TOPICS" --for stopped --timeout 30s
