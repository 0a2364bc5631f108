#!/usr/bin/env bash
# Runs openai_client_test.py with PyPI's `openai`, in an environment that it makes at the first run.
#   openai_client_test.sh VENV URL BASE_URL [MODEL [API_KEY]]         against a running server
#   openai_client_test.sh VENV SERVER PROGRAM MODEL_FOLDER           starts gateway_test_server itself
# Exit 77 = skipped: PyPI cannot be reached (anything else that fails is a failure).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv=$1 mode=$2
shift 2

if ! "$venv/bin/python" -c 'import openai' 2>/dev/null; then
  python3 -m venv "$venv"
  if ! "$venv/bin/pip" install --quiet --disable-pip-version-check --retries 1 --timeout 20 openai 2>"$venv/pip.log"; then
    if grep -qiE 'connection|timed out|resolution|unreachable|network|proxy|no matching distribution' "$venv/pip.log"; then
      echo "skipped: PyPI cannot be reached: $(tail -1 "$venv/pip.log")"
      exit 77
    fi
    cat "$venv/pip.log" >&2
    exit 1
  fi
fi

if [ "$mode" = URL ]; then
  exec "$venv/bin/python" "$here/openai_client_test.py" "$@"
fi
coproc server { exec "$1" "$2"; }
pid=$server_PID  # bash forgets it when the program ends
read -r url <&"${server[0]}"
"$venv/bin/python" "$here/openai_client_test.py" "$url"
# The end of its standard input ends the server.
eval "exec ${server[1]}>&-"
wait "$pid"
