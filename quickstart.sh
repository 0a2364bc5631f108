#!/usr/bin/env bash
# Installs what is needed, builds, starts a cluster of separate processes on this machine, and answers HTTP requests with it.
#   ./quickstart.sh          stays up and prints the URL and a curl line; Ctrl-C stops everything
#   ./quickstart.sh --once   asks three questions, streams a completion, prints the answers and the nodes, stops; exit 0
# Other arguments go to `troupe up`, e.g. --set front.listen=127.0.0.1:0 (any free port).
set -euo pipefail
cd "$(dirname "$0")"

once=0
args=()
for a in "$@"; do
  case $a in
    --once) once=1 ;;
    -h | --help) sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) args+=("$a") ;;
  esac
done

say() { echo "quickstart: $*" >&2; }

./install-deps.sh build
jobs=$(nproc)
log=build/quickstart.log
mkdir -p build
say "building (log: $log)"
if ! { cmake --preset quick && cmake --build --preset quick -j "$jobs"; } >"$log" 2>&1; then
  grep -E 'error|FAILED' "$log" | head -20 >&2 || true
  say "the build failed; the whole log is $log"
  exit 1
fi
troupe=build/quick/troupe

if [ "$once" -eq 0 ]; then
  exec "$troupe" up -c configs/local.yaml "${args[@]}"
fi

# With --once any free port will do unless one is asked for: 8000 may be taken.
demo=$(mktemp)
trap 'rm -f "$demo"' EXIT
cat >"$demo" <<'DEMO'
set -eu
ask() { # a question
  echo
  echo "> $1"
  "$TROUPE" chat --url "$TROUPE_URL" --once "$1" --temperature 0 --max-tokens 200
}
echo
echo "== chat with $TROUPE_MODEL at $TROUPE_URL/v1/chat/completions"
ask 'Tell me a short story about a cat.'
ask 'Why is it important to drink water?'
ask 'What can I cook for dinner with rice?'
echo
echo "== completion, streamed: POST $TROUPE_URL/v1/completions"
answer=$(curl -sS --fail-with-body --max-time 60 -N -H 'Content-Type: application/json' "$TROUPE_URL/v1/completions" \
  -d "{\"model\": \"$TROUPE_MODEL\", \"prompt\": \"Once upon a time\", \"max_tokens\": 12, \"temperature\": 0.8, \"seed\": 7,
    \"stream\": true, \"stream_options\": {\"include_usage\": true}}")
echo "$answer"
case $answer in *'data: [DONE]'*) ;; *) echo "the stream did not end with [DONE]" >&2; exit 1 ;; esac
DEMO
say "starting the cluster of configs/local.yaml"
export TROUPE=$PWD/$troupe
"$troupe" up -c configs/local.yaml --set front.listen=127.0.0.1:0 "${args[@]}" --run-dir "${TROUPE_RUN_DIR:-build/quickstart.run}" \
  --then "bash $demo"
say "done: everything is stopped"
