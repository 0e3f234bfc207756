#!/usr/bin/env bash
# From nothing to sampled motions: installs, writes a small built-in motion set, prepares it, trains, samples.
# Results lie in out/quickstart, or in OUT. STEPS changes the number of training steps.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

out="${OUT:-out/quickstart}"
mkdir -p "$out"
gpus="$(python -c 'import torch; print(torch.cuda.device_count())')"
processes=$((gpus > 0 ? gpus : 2))
export TORCH_EXTENSIONS_DIR="$(cd "$out" && pwd)/extensions"

echo "== 1/4 built-in motions: two clips for each of six action types"
rm -rf "$out/motions"
python launch/builtin_motions.py --out "$out/motions" --clips_per_type 2 --frames 60 90

echo "== 2/4 prepared corpus with text features"
python launch/prepare.py --data_dir "$out/motions/amass" --texts "$out/motions/texts" --index "$out/motions/index.csv" \
    --actions_file "$out/motions/actions.json" --split 1 0 0 --encode_text hashed --out "$out/corpus" --overwrite

echo "== 3/4 training on $processes process(es)"
rm -rf "$out/run"
deepspeed --num_gpus "$processes" --master_port "$(python -c 'from ds_hymotion.parallel.mesh import free_port; print(free_port())')" \
    launch/train.py --deepspeed --deepspeed_config ds_configs/cpu_tiny.json \
    --data_dir "$out/corpus" --output_dir "$out/run" --max_steps "${STEPS:-900}"

echo "== 4/4 one sample per action type, and the loss curve"
# A network this small knows its clips by heart: guidance above 1 only pushes it off them.
python launch/sample.py --model "$out/run" --from_corpus "$out/corpus" --guidance 1 --out "$out/samples"

echo "done: $out/run (checkpoints, weights.safetensors), $out/run/loss.png, $out/samples (npz, bvh, gif)"
