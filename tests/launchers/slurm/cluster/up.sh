#!/usr/bin/env bash
# A real Slurm (slurmctld, NODES slurmd, munged) on this one machine: no systemd, no cgroups, nothing outside $ROOT.
#
#   ROOT=/tmp/slurm SHARED=/a:/b IMAGE_PATHS=/venv ./up.sh; . $ROOT/env.sh    # then sbatch, srun, squeue work
#   ./down.sh
#
# Every node has its own network, UTS and mount namespace: own address, host name, loopback, /tmp and /dev/shm. All
# share $ROOT, $SHARED (colon list) and what is not below /tmp or /dev/shm. Their addresses are on a bridge without an
# uplink. Cores and memory of a node are advertised, not real.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=${ROOT:-/tmp/slurm-local}
NODES=${NODES:-4}            # virtual nodes node1..nodeN (one slurmd each)
CPUS=${CPUS:-16}             # advertised, not real (config_overrides)
MEM=${MEM:-64000}            # MiB advertised per node
SHARED=${SHARED:-}
IMAGE_PATHS=${IMAGE_PATHS:-}   # what every container image holds
BASE_PORT=${BASE_PORT:-26800}
NET=${NET:-198.51.100}       # TEST-NET-2
[ "$(id -u)" = 0 ] || { echo "run as root" >&2; exit 1; }
[ -e "$ROOT/pids" ] && { echo "$ROOT/pids exists: run down.sh first" >&2; exit 1; }
PATH=/usr/sbin:/sbin:$PATH
T0=$(date +%s%N)

mkdir -p "$ROOT"/{etc,log,run,state,spool,munge}
chmod 755 "$ROOT" "$ROOT"/{etc,log,run,state,spool}
chmod 700 "$ROOT/munge"
: > "$ROOT/pids"
trap 'rc=$?; [ $rc = 0 ] || { echo "up.sh failed; logs in $ROOT/log" >&2; "$HERE/down.sh" >&2; }' EXIT
export ROOT
# track NAME PID: pid and start time, so that down.sh can never signal a
# recycled pid that belongs to somebody else.
track() { echo "$1 $2 $(awk '{print $22}' "/proc/$2/stat")" >> "$ROOT/pids"; }
wait_for() { local i; for ((i=0; i<$2; i++)); do eval "$1" >/dev/null 2>&1 && return 0; sleep 0.1; done; echo "timeout: $1" >&2; return 1; }

# ---- network -----------------------------------------------------------------
BR=sl$BASE_PORT
ip link add "$BR" type bridge && ip addr add "$NET.1/24" dev "$BR" && ip link set "$BR" up
echo "$BR" > "$ROOT/run/bridge"
CTL=ctl CTLADDR=$NET.2
{ echo "127.0.0.1 localhost"; echo "$NET.1 login"; echo "$NET.2 ctl"
  for ((n=1; n<=NODES; n++)); do echo "$NET.$((10+n)) node$n"; done; } > "$ROOT/etc/hosts"
# daemon NAME HOST ADDR CMD...: start CMD as HOST, in the foreground of its own session
cat > "$ROOT/etc/enter.sh" <<'ENTER'
#!/usr/bin/env bash
# run inside fresh net+uts+mount namespaces: ENTER HOST PRIVATE_TMP CMD...
set -eu
host=$1 private=$2; shift 2
hostname "$host"
mount --make-rprivate /
mount --bind "$ROOT/etc/hosts" /etc/hosts
if [ "$private" = 1 ]; then
  stage=$ROOT/run/stage.$host; mkdir -p "$stage"; mount -t tmpfs none "$stage"
  i=0
  for p in $ROOT ${SHARED//:/ }; do
    case $p in /tmp/*|/dev/shm/*) mkdir -p "$stage/$i"; mount --rbind "$p" "$stage/$i"; i=$((i+1)) ;; esac
  done
  mkdir -p "$stage/tmp"; mount -t tmpfs -o mode=1777 none "$stage/tmp"
  i=0
  for p in $ROOT ${SHARED//:/ }; do
    case $p in /tmp/*) mkdir -p "$stage$p"; mount --rbind "$stage/$i" "$stage$p"; i=$((i+1)) ;; /dev/shm/*) i=$((i+1)) ;; esac
  done
  mount --rbind "$stage/tmp" /tmp
  mount -t tmpfs -o mode=1777 none /dev/shm
fi
until [ -e /sys/class/net/eth0 ] || ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
until ip addr show eth0 | grep -q 'inet '; do sleep 0.02; done
exec "$@"
ENTER
chmod 755 "$ROOT/etc/enter.sh"
cat > "$ROOT/etc/daemon.sh" <<'DAEMON'
#!/usr/bin/env bash
# daemon.sh NAME HOST ADDR PRIVATE_TMP CMD...
set -eu
name=$1 host=$2 addr=$3 private=$4; shift 4
export PATH=/usr/sbin:/sbin:$PATH
setsid unshare --net --uts --mount "$ROOT/etc/enter.sh" "$host" "$private" "$@" >>"$ROOT/log/$name.out" 2>&1 </dev/null &
pid=$!
self=$(readlink /proc/self/ns/net)
until [ "$(readlink /proc/$pid/ns/net)" != "$self" ]; do sleep 0.02; done
br=$(cat "$ROOT/run/bridge"); v=v${addr##*.}_${br#sl}
ip link add "$v" type veth peer name eth0 netns "$pid"
ip link set "$v" master "$br" up
nsenter -t "$pid" -n sh -c "ip link set lo up; ip addr add $addr/24 dev eth0; ip link set eth0 up"
echo "$name $pid $(awk '{print $22}' "/proc/$pid/stat")" >> "$ROOT/pids"
DAEMON
chmod 755 "$ROOT/etc/daemon.sh"
export SHARED

# ---- munge (own key, own socket) ----------------------------------------------
[ -e "$ROOT/munge/key" ] || dd if=/dev/urandom of="$ROOT/munge/key" bs=64 count=1 status=none
chmod 400 "$ROOT/munge/key"
SOCK=$ROOT/run/munge.socket
setsid munged --foreground --force --key-file="$ROOT/munge/key" --socket="$SOCK" \
  --pid-file="$ROOT/munge/pid" --log-file="$ROOT/munge/log" \
  --seed-file="$ROOT/munge/seed" --num-threads=4 >"$ROOT/log/munged.out" 2>&1 </dev/null &
track munged $!

# ---- container plugin ------------------------------------------------------------
gcc -shared -fPIC -O2 -Wall -o "$ROOT/etc/fakepyxis.so" "$HERE/fakepyxis.c"
echo "required $ROOT/etc/fakepyxis.so log=$ROOT/log/containers.jsonl paths=$IMAGE_PATHS" > "$ROOT/etc/plugstack.conf"
: > "$ROOT/log/containers.jsonl"; chmod 666 "$ROOT/log/containers.jsonl"

# ---- slurm.conf ------------------------------------------------------------------
cat > "$ROOT/etc/slurm.conf" <<CONF
ClusterName=local
SlurmctldHost=$CTL($CTLADDR)
SlurmctldPort=$((BASE_PORT+1))
SrunPortRange=$((BASE_PORT+1000))-$((BASE_PORT+1999))
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# cred_expire also sets how long a requeued job waits (default 120 s, which is also what a value below 5 gives)
AuthInfo=socket=$SOCK,cred_expire=5
StateSaveLocation=$ROOT/state
SlurmdSpoolDir=$ROOT/spool/%n
SlurmctldPidFile=$ROOT/run/slurmctld.pid
SlurmdPidFile=$ROOT/run/slurmd.%n.pid
SlurmctldLogFile=$ROOT/log/slurmctld.log
SlurmdLogFile=$ROOT/log/slurmd.%n.log
SlurmctldDebug=info
SlurmdDebug=info
PlugStackConfig=$ROOT/etc/plugstack.conf
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldTimeout=60
SlurmdTimeout=20
KillWait=${KILL_WAIT:-5}
MinJobAge=3600
InactiveLimit=0
CompleteWait=0
BatchStartTimeout=120
MessageTimeout=20
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=1,sched_interval=2,bf_interval=2
PriorityType=priority/basic
JobRequeue=1
AccountingStorageType=accounting_storage/none
$(for ((n=1; n<=NODES; n++)); do
  at="NodeHostname=node$n NodeAddr=$NET.$((10+n)) Port=$((BASE_PORT+3))"
  echo "NodeName=node$n $at CPUS=$CPUS Sockets=1 CoresPerSocket=$CPUS ThreadsPerCore=1 RealMemory=$MEM State=UNKNOWN"
done)
PartitionName=batch Nodes=ALL Default=YES MaxTime=1-0 DefaultTime=10 State=UP
CONF
echo "CgroupPlugin=cgroup/v1" > "$ROOT/etc/cgroup.conf"
cat > "$ROOT/env.sh" <<ENV
export ROOT=$ROOT SHARED=$SHARED
export SLURM_CONF=$ROOT/etc/slurm.conf
export PATH=/usr/sbin:\$PATH
ENV
export SLURM_CONF=$ROOT/etc/slurm.conf
wait_for "munge -S $SOCK -n </dev/null" 1200

# ---- controller ----------------------------------------------------------------------
"$ROOT/etc/daemon.sh" ctl ctl "$CTLADDR" 0 slurmctld -D -f "$ROOT/etc/slurm.conf"
wait_for "timeout 5 scontrol ping | grep -q UP" 1200

# ---- nodes ---------------------------------------------------------------------------
for ((n=1; n<=NODES; n++)); do
  mkdir -p "$ROOT/spool/node$n"
  "$ROOT/etc/daemon.sh" "slurmd.node$n" "node$n" "$NET.$((10+n))" 1 slurmd -D -N "node$n" -f "$ROOT/etc/slurm.conf"
done
wait_for '[ "$(sinfo -h -N -o %T | grep -c idle)" = '"$NODES"' ]' 1200 || { sinfo -N -l; exit 1; }
echo "up in $(( ($(date +%s%N) - T0) / 1000000 )) ms: $(sinfo -h -o '%N %c cpus %T')"
