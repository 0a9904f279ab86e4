### 01_sft.sh
#!/bin/bash
#SBATCH --job-name=cascade2_30b_a3b-2855b120.sft
#SBATCH --account=research
#SBATCH --partition=batch
#SBATCH --nodes=32
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --kill-on-invalid-dep=yes
#SBATCH --output=/shared/runs/cascade2_30b_a3b/stages/01_sft/logs/sbatch_%j.out

export OMP_NUM_THREADS=1
export PYTHONHASHSEED=0
export PYTHONSAFEPATH=1
export CASCADE_PHASE_LIMIT_S=1800
export NCCL_DEBUG=WARN
export HF_HUB_OFFLINE=1
set +vx; unset SLURM_UNBUFFEREDIO
export CASCADE_HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
queue_again() {
  code=$?
  restarts=${SLURM_RESTART_COUNT:-0}
  last=$(cat /shared/runs/cascade2_30b_a3b/stages/01_sft/logs/began_$SLURM_JOB_ID 2>/dev/null || echo -1)
  if [ $code -eq 0 ] || [ -e /shared/runs/cascade2_30b_a3b/stages/01_sft/logs/final_$SLURM_JOB_ID ]; then return; fi
  if [ $((restarts - last)) -ge 3 ]; then
    echo 'the job started 3 times, but its task never began: see the output in /shared/runs/cascade2_30b_a3b/stages/01_sft/logs' > /shared/runs/cascade2_30b_a3b/stages/01_sft/logs/final_$SLURM_JOB_ID
  elif [ $restarts -lt 100 ]; then
    scontrol requeue "$SLURM_JOB_ID"
  fi
}
trap queue_again EXIT

srun --output /shared/runs/cascade2_30b_a3b/stages/01_sft/logs/job_%j_${SLURM_RESTART_COUNT:-0}.out --wait=60 --kill-on-bad-exit=1 /venv/bin/python -m cascade_rl.launchers.stage.in_job /shared/runs/cascade2_30b_a3b sft --workdir /work --nproc-per-node 8 --devices gpu --attempts 3 -- /venv/bin/python -m cascade_rl.launchers.stage.run_stage
### 02_if_rl.sh
#!/bin/bash
#SBATCH --job-name=cascade2_30b_a3b-2855b120.if_rl
#SBATCH --account=research
#SBATCH --partition=batch
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --kill-on-invalid-dep=yes
#SBATCH --output=/shared/runs/cascade2_30b_a3b/stages/02_if_rl/logs/sbatch_%j.out

export OMP_NUM_THREADS=1
export PYTHONHASHSEED=0
export PYTHONSAFEPATH=1
export CASCADE_PHASE_LIMIT_S=1800
export NCCL_DEBUG=WARN
export HF_HUB_OFFLINE=1
set +vx; unset SLURM_UNBUFFEREDIO
export CASCADE_HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
queue_again() {
  code=$?
  restarts=${SLURM_RESTART_COUNT:-0}
  last=$(cat /shared/runs/cascade2_30b_a3b/stages/02_if_rl/logs/began_$SLURM_JOB_ID 2>/dev/null || echo -1)
  if [ $code -eq 0 ] || [ -e /shared/runs/cascade2_30b_a3b/stages/02_if_rl/logs/final_$SLURM_JOB_ID ]; then return; fi
  if [ $((restarts - last)) -ge 3 ]; then
    echo 'the job started 3 times, but its task never began: see the output in /shared/runs/cascade2_30b_a3b/stages/02_if_rl/logs' > /shared/runs/cascade2_30b_a3b/stages/02_if_rl/logs/final_$SLURM_JOB_ID
  elif [ $restarts -lt 100 ]; then
    scontrol requeue "$SLURM_JOB_ID"
  fi
}
trap queue_again EXIT

srun --output /shared/runs/cascade2_30b_a3b/stages/02_if_rl/logs/job_%j_${SLURM_RESTART_COUNT:-0}.out --wait=60 --kill-on-bad-exit=1 /venv/bin/python -m cascade_rl.launchers.stage.in_job /shared/runs/cascade2_30b_a3b if_rl --workdir /work --nproc-per-node 8 --devices gpu --attempts 3 -- /venv/bin/python -m cascade_rl.launchers.stage.run_stage
### 03_multi_domain_rl.sh
#!/bin/bash
#SBATCH --job-name=cascade2_30b_a3b-2855b120.multi_domain_rl
#SBATCH --account=research
#SBATCH --partition=batch
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --kill-on-invalid-dep=yes
#SBATCH --output=/shared/runs/cascade2_30b_a3b/stages/03_multi_domain_rl/logs/sbatch_%j.out

export OMP_NUM_THREADS=1
export PYTHONHASHSEED=0
export PYTHONSAFEPATH=1
export CASCADE_PHASE_LIMIT_S=1800
export NCCL_DEBUG=WARN
export HF_HUB_OFFLINE=1
set +vx; unset SLURM_UNBUFFEREDIO
export CASCADE_HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
queue_again() {
  code=$?
  restarts=${SLURM_RESTART_COUNT:-0}
  last=$(cat /shared/runs/cascade2_30b_a3b/stages/03_multi_domain_rl/logs/began_$SLURM_JOB_ID 2>/dev/null || echo -1)
  if [ $code -eq 0 ] || [ -e /shared/runs/cascade2_30b_a3b/stages/03_multi_domain_rl/logs/final_$SLURM_JOB_ID ]; then return; fi
  if [ $((restarts - last)) -ge 3 ]; then
    echo 'the job started 3 times, but its task never began: see the output in /shared/runs/cascade2_30b_a3b/stages/03_multi_domain_rl/logs' > /shared/runs/cascade2_30b_a3b/stages/03_multi_domain_rl/logs/final_$SLURM_JOB_ID
  elif [ $restarts -lt 100 ]; then
    scontrol requeue "$SLURM_JOB_ID"
  fi
}
trap queue_again EXIT

srun --output /shared/runs/cascade2_30b_a3b/stages/03_multi_domain_rl/logs/job_%j_${SLURM_RESTART_COUNT:-0}.out --wait=60 --kill-on-bad-exit=1 /venv/bin/python -m cascade_rl.launchers.stage.in_job /shared/runs/cascade2_30b_a3b multi_domain_rl --workdir /work --nproc-per-node 8 --devices gpu --attempts 3 -- /venv/bin/python -m cascade_rl.launchers.stage.run_stage
### 04_rlhf_teacher.sh
#!/bin/bash
#SBATCH --job-name=cascade2_30b_a3b-2855b120.rlhf_teacher
#SBATCH --account=research
#SBATCH --partition=batch
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --kill-on-invalid-dep=yes
#SBATCH --output=/shared/runs/cascade2_30b_a3b/stages/04_rlhf_teacher/logs/sbatch_%j.out

export OMP_NUM_THREADS=1
export PYTHONHASHSEED=0
export PYTHONSAFEPATH=1
export CASCADE_PHASE_LIMIT_S=1800
export NCCL_DEBUG=WARN
export HF_HUB_OFFLINE=1
set +vx; unset SLURM_UNBUFFEREDIO
export CASCADE_HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
queue_again() {
  code=$?
  restarts=${SLURM_RESTART_COUNT:-0}
  last=$(cat /shared/runs/cascade2_30b_a3b/stages/04_rlhf_teacher/logs/began_$SLURM_JOB_ID 2>/dev/null || echo -1)
  if [ $code -eq 0 ] || [ -e /shared/runs/cascade2_30b_a3b/stages/04_rlhf_teacher/logs/final_$SLURM_JOB_ID ]; then return; fi
  if [ $((restarts - last)) -ge 3 ]; then
    echo 'the job started 3 times, but its task never began: see the output in /shared/runs/cascade2_30b_a3b/stages/04_rlhf_teacher/logs' > /shared/runs/cascade2_30b_a3b/stages/04_rlhf_teacher/logs/final_$SLURM_JOB_ID
  elif [ $restarts -lt 100 ]; then
    scontrol requeue "$SLURM_JOB_ID"
  fi
}
trap queue_again EXIT

srun --output /shared/runs/cascade2_30b_a3b/stages/04_rlhf_teacher/logs/job_%j_${SLURM_RESTART_COUNT:-0}.out --wait=60 --kill-on-bad-exit=1 /venv/bin/python -m cascade_rl.launchers.stage.in_job /shared/runs/cascade2_30b_a3b rlhf_teacher --workdir /work --nproc-per-node 8 --devices gpu --attempts 3 -- /venv/bin/python -m cascade_rl.launchers.stage.run_stage
### 05_mopd.sh
#!/bin/bash
#SBATCH --job-name=cascade2_30b_a3b-2855b120.mopd
#SBATCH --account=research
#SBATCH --partition=batch
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --kill-on-invalid-dep=yes
#SBATCH --output=/shared/runs/cascade2_30b_a3b/stages/05_mopd/logs/sbatch_%j.out

export OMP_NUM_THREADS=1
export PYTHONHASHSEED=0
export PYTHONSAFEPATH=1
export CASCADE_PHASE_LIMIT_S=1800
export NCCL_DEBUG=WARN
export HF_HUB_OFFLINE=1
set +vx; unset SLURM_UNBUFFEREDIO
export CASCADE_HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
queue_again() {
  code=$?
  restarts=${SLURM_RESTART_COUNT:-0}
  last=$(cat /shared/runs/cascade2_30b_a3b/stages/05_mopd/logs/began_$SLURM_JOB_ID 2>/dev/null || echo -1)
  if [ $code -eq 0 ] || [ -e /shared/runs/cascade2_30b_a3b/stages/05_mopd/logs/final_$SLURM_JOB_ID ]; then return; fi
  if [ $((restarts - last)) -ge 3 ]; then
    echo 'the job started 3 times, but its task never began: see the output in /shared/runs/cascade2_30b_a3b/stages/05_mopd/logs' > /shared/runs/cascade2_30b_a3b/stages/05_mopd/logs/final_$SLURM_JOB_ID
  elif [ $restarts -lt 100 ]; then
    scontrol requeue "$SLURM_JOB_ID"
  fi
}
trap queue_again EXIT

srun --output /shared/runs/cascade2_30b_a3b/stages/05_mopd/logs/job_%j_${SLURM_RESTART_COUNT:-0}.out --wait=60 --kill-on-bad-exit=1 /venv/bin/python -m cascade_rl.launchers.stage.in_job /shared/runs/cascade2_30b_a3b mopd --workdir /work --nproc-per-node 8 --devices gpu --attempts 3 -- /venv/bin/python -m cascade_rl.launchers.stage.run_stage
### 06_rlhf.sh
#!/bin/bash
#SBATCH --job-name=cascade2_30b_a3b-2855b120.rlhf
#SBATCH --account=research
#SBATCH --partition=batch
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --kill-on-invalid-dep=yes
#SBATCH --output=/shared/runs/cascade2_30b_a3b/stages/06_rlhf/logs/sbatch_%j.out

export OMP_NUM_THREADS=1
export PYTHONHASHSEED=0
export PYTHONSAFEPATH=1
export CASCADE_PHASE_LIMIT_S=1800
export NCCL_DEBUG=WARN
export HF_HUB_OFFLINE=1
set +vx; unset SLURM_UNBUFFEREDIO
export CASCADE_HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
queue_again() {
  code=$?
  restarts=${SLURM_RESTART_COUNT:-0}
  last=$(cat /shared/runs/cascade2_30b_a3b/stages/06_rlhf/logs/began_$SLURM_JOB_ID 2>/dev/null || echo -1)
  if [ $code -eq 0 ] || [ -e /shared/runs/cascade2_30b_a3b/stages/06_rlhf/logs/final_$SLURM_JOB_ID ]; then return; fi
  if [ $((restarts - last)) -ge 3 ]; then
    echo 'the job started 3 times, but its task never began: see the output in /shared/runs/cascade2_30b_a3b/stages/06_rlhf/logs' > /shared/runs/cascade2_30b_a3b/stages/06_rlhf/logs/final_$SLURM_JOB_ID
  elif [ $restarts -lt 100 ]; then
    scontrol requeue "$SLURM_JOB_ID"
  fi
}
trap queue_again EXIT

srun --output /shared/runs/cascade2_30b_a3b/stages/06_rlhf/logs/job_%j_${SLURM_RESTART_COUNT:-0}.out --wait=60 --kill-on-bad-exit=1 /venv/bin/python -m cascade_rl.launchers.stage.in_job /shared/runs/cascade2_30b_a3b rlhf --workdir /work --nproc-per-node 8 --devices gpu --attempts 3 -- /venv/bin/python -m cascade_rl.launchers.stage.run_stage
### 07_long_context_rl.sh
#!/bin/bash
#SBATCH --job-name=cascade2_30b_a3b-2855b120.long_context_rl
#SBATCH --account=research
#SBATCH --partition=batch
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --kill-on-invalid-dep=yes
#SBATCH --output=/shared/runs/cascade2_30b_a3b/stages/07_long_context_rl/logs/sbatch_%j.out

export OMP_NUM_THREADS=1
export PYTHONHASHSEED=0
export PYTHONSAFEPATH=1
export CASCADE_PHASE_LIMIT_S=1800
export NCCL_DEBUG=WARN
export HF_HUB_OFFLINE=1
set +vx; unset SLURM_UNBUFFEREDIO
export CASCADE_HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
queue_again() {
  code=$?
  restarts=${SLURM_RESTART_COUNT:-0}
  last=$(cat /shared/runs/cascade2_30b_a3b/stages/07_long_context_rl/logs/began_$SLURM_JOB_ID 2>/dev/null || echo -1)
  if [ $code -eq 0 ] || [ -e /shared/runs/cascade2_30b_a3b/stages/07_long_context_rl/logs/final_$SLURM_JOB_ID ]; then return; fi
  if [ $((restarts - last)) -ge 3 ]; then
    echo 'the job started 3 times, but its task never began: see the output in /shared/runs/cascade2_30b_a3b/stages/07_long_context_rl/logs' > /shared/runs/cascade2_30b_a3b/stages/07_long_context_rl/logs/final_$SLURM_JOB_ID
  elif [ $restarts -lt 100 ]; then
    scontrol requeue "$SLURM_JOB_ID"
  fi
}
trap queue_again EXIT

srun --output /shared/runs/cascade2_30b_a3b/stages/07_long_context_rl/logs/job_%j_${SLURM_RESTART_COUNT:-0}.out --wait=60 --kill-on-bad-exit=1 /venv/bin/python -m cascade_rl.launchers.stage.in_job /shared/runs/cascade2_30b_a3b long_context_rl --workdir /work --nproc-per-node 8 --devices gpu --attempts 3 -- /venv/bin/python -m cascade_rl.launchers.stage.run_stage
### 08_code_rl.sh
#!/bin/bash
#SBATCH --job-name=cascade2_30b_a3b-2855b120.code_rl
#SBATCH --account=research
#SBATCH --partition=batch
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --kill-on-invalid-dep=yes
#SBATCH --output=/shared/runs/cascade2_30b_a3b/stages/08_code_rl/logs/sbatch_%j.out

export OMP_NUM_THREADS=1
export PYTHONHASHSEED=0
export PYTHONSAFEPATH=1
export CASCADE_PHASE_LIMIT_S=1800
export NCCL_DEBUG=WARN
export HF_HUB_OFFLINE=1
set +vx; unset SLURM_UNBUFFEREDIO
export CASCADE_HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
queue_again() {
  code=$?
  restarts=${SLURM_RESTART_COUNT:-0}
  last=$(cat /shared/runs/cascade2_30b_a3b/stages/08_code_rl/logs/began_$SLURM_JOB_ID 2>/dev/null || echo -1)
  if [ $code -eq 0 ] || [ -e /shared/runs/cascade2_30b_a3b/stages/08_code_rl/logs/final_$SLURM_JOB_ID ]; then return; fi
  if [ $((restarts - last)) -ge 3 ]; then
    echo 'the job started 3 times, but its task never began: see the output in /shared/runs/cascade2_30b_a3b/stages/08_code_rl/logs' > /shared/runs/cascade2_30b_a3b/stages/08_code_rl/logs/final_$SLURM_JOB_ID
  elif [ $restarts -lt 100 ]; then
    scontrol requeue "$SLURM_JOB_ID"
  fi
}
trap queue_again EXIT

srun --output /shared/runs/cascade2_30b_a3b/stages/08_code_rl/logs/job_%j_${SLURM_RESTART_COUNT:-0}.out --wait=60 --kill-on-bad-exit=1 /venv/bin/python -m cascade_rl.launchers.stage.in_job /shared/runs/cascade2_30b_a3b code_rl --workdir /work --nproc-per-node 8 --devices gpu --attempts 3 -- /venv/bin/python -m cascade_rl.launchers.stage.run_stage
### 09_swe_agentless_rl.sh
#!/bin/bash
#SBATCH --job-name=cascade2_30b_a3b-2855b120.swe_agentless_rl
#SBATCH --account=research
#SBATCH --partition=batch
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --kill-on-invalid-dep=yes
#SBATCH --output=/shared/runs/cascade2_30b_a3b/stages/09_swe_agentless_rl/logs/sbatch_%j.out

export OMP_NUM_THREADS=1
export PYTHONHASHSEED=0
export PYTHONSAFEPATH=1
export CASCADE_PHASE_LIMIT_S=1800
export NCCL_DEBUG=WARN
export HF_HUB_OFFLINE=1
set +vx; unset SLURM_UNBUFFEREDIO
export CASCADE_HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
queue_again() {
  code=$?
  restarts=${SLURM_RESTART_COUNT:-0}
  last=$(cat /shared/runs/cascade2_30b_a3b/stages/09_swe_agentless_rl/logs/began_$SLURM_JOB_ID 2>/dev/null || echo -1)
  if [ $code -eq 0 ] || [ -e /shared/runs/cascade2_30b_a3b/stages/09_swe_agentless_rl/logs/final_$SLURM_JOB_ID ]; then return; fi
  if [ $((restarts - last)) -ge 3 ]; then
    echo 'the job started 3 times, but its task never began: see the output in /shared/runs/cascade2_30b_a3b/stages/09_swe_agentless_rl/logs' > /shared/runs/cascade2_30b_a3b/stages/09_swe_agentless_rl/logs/final_$SLURM_JOB_ID
  elif [ $restarts -lt 100 ]; then
    scontrol requeue "$SLURM_JOB_ID"
  fi
}
trap queue_again EXIT

srun --output /shared/runs/cascade2_30b_a3b/stages/09_swe_agentless_rl/logs/job_%j_${SLURM_RESTART_COUNT:-0}.out --wait=60 --kill-on-bad-exit=1 /venv/bin/python -m cascade_rl.launchers.stage.in_job /shared/runs/cascade2_30b_a3b swe_agentless_rl --workdir /work --nproc-per-node 8 --devices gpu --attempts 3 -- /venv/bin/python -m cascade_rl.launchers.stage.run_stage
### 10_swe_agentic_rl.sh
#!/bin/bash
#SBATCH --job-name=cascade2_30b_a3b-2855b120.swe_agentic_rl
#SBATCH --account=research
#SBATCH --partition=batch
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --kill-on-invalid-dep=yes
#SBATCH --output=/shared/runs/cascade2_30b_a3b/stages/10_swe_agentic_rl/logs/sbatch_%j.out

export OMP_NUM_THREADS=1
export PYTHONHASHSEED=0
export PYTHONSAFEPATH=1
export CASCADE_PHASE_LIMIT_S=1800
export NCCL_DEBUG=WARN
export HF_HUB_OFFLINE=1
set +vx; unset SLURM_UNBUFFEREDIO
export CASCADE_HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
queue_again() {
  code=$?
  restarts=${SLURM_RESTART_COUNT:-0}
  last=$(cat /shared/runs/cascade2_30b_a3b/stages/10_swe_agentic_rl/logs/began_$SLURM_JOB_ID 2>/dev/null || echo -1)
  if [ $code -eq 0 ] || [ -e /shared/runs/cascade2_30b_a3b/stages/10_swe_agentic_rl/logs/final_$SLURM_JOB_ID ]; then return; fi
  if [ $((restarts - last)) -ge 3 ]; then
    echo 'the job started 3 times, but its task never began: see the output in /shared/runs/cascade2_30b_a3b/stages/10_swe_agentic_rl/logs' > /shared/runs/cascade2_30b_a3b/stages/10_swe_agentic_rl/logs/final_$SLURM_JOB_ID
  elif [ $restarts -lt 100 ]; then
    scontrol requeue "$SLURM_JOB_ID"
  fi
}
trap queue_again EXIT

srun --output /shared/runs/cascade2_30b_a3b/stages/10_swe_agentic_rl/logs/job_%j_${SLURM_RESTART_COUNT:-0}.out --wait=60 --kill-on-bad-exit=1 /venv/bin/python -m cascade_rl.launchers.stage.in_job /shared/runs/cascade2_30b_a3b swe_agentic_rl --workdir /work --nproc-per-node 8 --devices gpu --attempts 3 -- /venv/bin/python -m cascade_rl.launchers.stage.run_stage
