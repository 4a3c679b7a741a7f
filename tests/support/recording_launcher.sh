#!/bin/sh
# Stands in for torchrun and the trainer (DISTTRAIN_LAUNCHER): writes the command and the environment of a node's ranks.
arguments=$*
while [ $# -gt 0 ]; do
  case "$1" in
    --node-rank) node=$2; shift ;;
    --run-dir) run=$2; shift ;;
    --attempt) attempt=$2; shift ;;
  esac
  shift
done
{ echo "COMMAND=$arguments"; echo "CWD=$(pwd)"; env; } > "$run/seen-$node"
[ "$node" != 0 ] || printf '{"status": "completed", "attempt": %d}' "$attempt" > "$run/metrics.json"
