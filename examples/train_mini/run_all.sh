#!/usr/bin/env bash
# Makes `mini` from nothing but the teacher's GGUF file: run_all.sh FOLDER [STAGE...]
#
# Stages, in order, each finished once FOLDER/.done/STAGE exists (remove that file to run it again):
#   generate   the teacher writes documents, one process a GPU       FOLDER/raw/*.jsonl
#   tokenizer  byte-level BPE of a sample of them                     FOLDER/tokenizer.json
#   pack       duplicates marked, documents encoded, split            FOLDER/train.npy heldout.npy heldout.jsonl data.json
#   main       the backbone, data parallel over the GPUs              FOLDER/run/backbone.pt
#   prompts    questions for the text that the model itself writes    FOLDER/prompts.npz
#   drafter    the drafter, on the frozen backbone and that text      FOLDER/run/final.pt
#   export     the checkpoint in the released layout                  FOLDER/mini
#   calibrate  of the drafter's confidences, and their errors         FOLDER/mini/config.json FOLDER/drafter.json
#   evaluate   loss, acceptance, calibration, replay, load            FOLDER/eval.json
# Without stages all of them run. Settings come from the environment, defaults in brackets:
#   TEACHER [FOLDER/teacher.gguf]  GPUS [all]  GENERATE_SECONDS [300]  VOCABULARY [4096]
#   MAIN_MINUTES [8]  DRAFTER_MINUTES [7]  ROWS [4096]  DEVICE [cuda; cpu works at toy size]  PYTHON [python3]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:?a folder for everything that is made}
shift
mkdir -p "$folder/.done" "$folder/raw" "$folder/run"
folder=$(cd "$folder" && pwd)
python=${PYTHON:-python3}
teacher=${TEACHER:-$folder/teacher.gguf}
gpus=${GPUS:-$(nvidia-smi -L 2>/dev/null | wc -l)}
device=${DEVICE:-cuda}
cd "$here"

train() {
  if [ "$device" = cuda ]; then
    "$python" -m torch.distributed.run --master-addr 127.0.0.1 --master-port 29511 \
      --nproc-per-node "$gpus" train.py "$@"
  else
    "$python" train.py --toy "$@"
  fi
}

stage_generate() {
  local pids=() g
  for ((g = 0; g < (gpus > 0 ? gpus : 1); g++)); do
    "$python" generate.py --teacher "$teacher" --out "$folder/raw" --seconds "${GENERATE_SECONDS:-300}" --gpu "$g" \
      --seed "$g" --device "$device" --rows "${ROWS:-4096}" >"$folder/generate-$g.log" 2>&1 &
    pids+=($!)
  done
  if [ "$device" = cuda ]; then # fills the compile cache meanwhile
    train --warm --vocabulary "${VOCABULARY:-4096}" --out "$folder/warm" >"$folder/warm.log" 2>&1 || true
  fi
  for p in "${pids[@]}"; do wait "$p"; done
  tail -qn 1 "$folder"/generate-*.log
}

stage_tokenizer() {
  "$python" tokenizer.py --raw "$folder/raw" --vocabulary "${VOCABULARY:-4096}" --out "$folder/tokenizer.json"
}

stage_pack() {
  "$python" dedup.py --raw "$folder/raw"
  "$python" pack.py --raw "$folder/raw" --tokenizer "$folder/tokenizer.json" --out "$folder"
}

data=(--tokens "$folder/train.npy" --heldout "$folder/heldout.npy" --tokenizer "$folder/tokenizer.json" --out "$folder/run")

stage_main() { train "${data[@]}" --phase main --minutes "${MAIN_MINUTES:-8}"; }

stage_prompts() { "$python" prompts.py --tokenizer "$folder/tokenizer.json" --out "$folder/prompts.npz"; }

stage_drafter() {
  train "${data[@]}" --phase drafter --first layers --prompts "$folder/prompts.npz" \
    --drafter-minutes "${DRAFTER_MINUTES:-7}" --write-at 0.1,0.25,0.4,0.55
}

stage_export() { "$python" export.py --run "$folder/run" --tokenizer "$folder/tokenizer.json" --to "$folder/mini"; }

stage_calibrate() {
  "$python" eval_drafter.py --checkpoint "$folder/mini" --heldout "$folder/heldout.npy" --to "$folder/drafter.json"
}

stage_evaluate() {
  "$python" evaluate.py --run "$folder/run" --checkpoint "$folder/mini" --heldout "$folder/heldout.npy" \
    --tokenizer "$folder/tokenizer.json" --acceptance --replay --to "$folder/eval.json"
}

[ $# -gt 0 ] || set -- generate tokenizer pack main prompts drafter export calibrate evaluate
for stage in "$@"; do
  [ -e "$folder/.done/$stage" ] && continue
  echo "== $stage"
  "stage_$stage"
  touch "$folder/.done/$stage"
done
