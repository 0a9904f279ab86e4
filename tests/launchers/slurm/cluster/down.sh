#!/usr/bin/env bash
# Take down what up.sh started: by recorded pid, and only if that pid still
# has the recorded start time. Running jobs are cancelled first.
set -u
ROOT=${ROOT:-/tmp/slurm-local}
[ -e "$ROOT/pids" ] || { echo "nothing to take down in $ROOT"; exit 0; }
export SLURM_CONF=$ROOT/etc/slurm.conf PATH=/usr/sbin:$PATH
alive() { [ -r "/proc/$1/stat" ] && [ "$(awk '{print $22}' "/proc/$1/stat" 2>/dev/null)" = "$2" ] && [ "$(awk '{print $3}' "/proc/$1/stat" 2>/dev/null)" != Z ]; }
if grep -q '^ctl ' "$ROOT/pids"; then
  ids=$(timeout 10 squeue -h -o %A 2>/dev/null | sort -u)
  if [ -n "$ids" ]; then
    timeout 10 scancel $ids 2>/dev/null
    for _ in $(seq 60); do [ -z "$(timeout 5 squeue -h -t R,CG -o %A 2>/dev/null)" ] && break; sleep 0.25; done
  fi
fi
# newest first: nodes, controller, munge
tac "$ROOT/pids" | while read -r name pid start; do
  alive "$pid" "$start" || continue
  kill -TERM "$pid"
  for _ in $(seq 100); do alive "$pid" "$start" || break; sleep 0.1; done
  alive "$pid" "$start" && { echo "$name ($pid): SIGKILL"; kill -KILL "$pid"; }
done
[ -e "$ROOT/run/bridge" ] && { ip link del "$(cat "$ROOT/run/bridge")" 2>/dev/null; rm -f "$ROOT/run/bridge"; }
rm -f "$ROOT/pids"
echo "down"
