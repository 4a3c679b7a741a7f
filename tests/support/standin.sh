#!/bin/sh
# Stands in for torchrun and the trainer (DISTTRAIN_LAUNCHER): says that it started, then does as $STANDIN says.
while [ $# -gt 0 ]; do
  case "$1" in
    --node-rank) node=$2; shift ;;
    --run-dir) run=$2; shift ;;
    --attempt) attempt=$2; shift ;;
  esac
  shift
done
echo "$attempt $node $$" >> "$run/starts"
case "${STANDIN:-complete}" in
  complete)
    [ "$node" != 0 ] || printf '{"status": "completed", "attempt": %d}' "$attempt" > "$run/metrics.json" ;;
  fail)
    echo "it went wrong"; exit 1 ;;
  fail-once)
    [ "$attempt" -gt 0 ] || exit 1
    printf '{"status": "completed", "attempt": %d}' "$attempt" > "$run/metrics.json" ;;
  fail-on-1)
    [ "$node" != 1 ] || { echo "it went wrong"; exit 1; }
    while :; do sleep 1000; done ;;
  leave) # when it is asked to, having saved
    folder=$(printf '%s/attempts/%03d' "$run" "$attempt")
    while [ ! -e "$folder/stop.json" ]; do sleep 0.05; done
    mkdir -p "$run/checkpoints/step-0000000$((attempt + 1))"
    printf '{"status": "stopped", "stop_cause": "preempted", "attempt": %d, "steps": 3, "steps_total": 9}' \
      "$attempt" > "$run/metrics.json" ;;
  leave-once) # the same; not asked, or started again, it completes as soon as `go` is there
    folder=$(printf '%s/attempts/%03d' "$run" "$attempt") status=completed
    while [ ! -e "$run/go" ] && [ "$status" = completed ]; do
      if [ "$attempt" = 0 ] && [ -e "$folder/stop.json" ]; then status=stopped; else sleep 0.05; fi
    done
    printf '{"status": "%s", "stop_cause": "preempted", "attempt": %d, "steps": 3, "steps_total": 9}' \
      "$status" "$attempt" > "$run/metrics.json" ;;
  out-of-memory) # as torchrun reports a rank that the kernel ended, and as its control group counts it
    printf 'Root Cause (first observed failure):\n  time      : 2026-01-01_00:00:00\n  rank      : 0 (local_rank: 0)\n  exitcode  : -9 (pid: 1)\n'
    echo "oom_kill 3" > "$EVENTS"; exit 1 ;;
  fail-when-full) # with a checkpoint, on node 1, once the disk is full
    mkdir -p "$run/checkpoints/step-0000000$((attempt + 1))"
    while [ ! -e "$FULL" ]; do sleep 0.05; done
    [ "$node" = 1 ] || sleep 300
    exit 1 ;;
  hang) # with a worker in a session of its own, which takes no notice of a polite request
    setsid sh -c 'trap "" TERM; echo "worker $$" >> "$0/starts"; sleep 300' "$run" &
    sleep 300 ;;
esac
