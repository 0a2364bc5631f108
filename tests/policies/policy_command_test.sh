#!/bin/sh
# troupe policy from the shell: plans on stdout, messages on stderr, exit codes as documented. $1: the program.
troupe=$1
failed=0
messages=$(mktemp) || exit 1
trap 'rm -f "$messages"' EXIT
# expect CODE TEXT INPUT ARGUMENTS..: exit code, and a text that stdout (code 0) or stderr must hold
expect() {
  code=$1 text=$2 input=$3
  shift 3
  out=$(printf '%s' "$input" | "$troupe" policy "$@" 2>"$messages")
  got=$?
  [ $got -eq 0 ] || { [ -z "$out" ] || { echo "policy $*: stdout on an error: $out"; failed=1; }; out=$(cat "$messages"); }
  [ $got -eq "$code" ] || { echo "policy $*: exit $got, expected $code: $out"; failed=1; }
  case "$out" in *"$text"*) ;; *) echo "policy $*: no '$text' in: $out"; failed=1 ;; esac
}
expect 0 '"choice": 1' '{"usable": [true, true], "last": 0}' round_robin
expect 0 '"decoder_from": 172' '{"prompt_length": 300, "known": 309, "window": 128, "decoder_layers": 20}' restart
expect 0 'round_robin' '' --list
expect 0 '"input"' '' --schema pages
expect 1 'usable[1]: expected true or false, got number' '{"usable": [true, 3]}' round_robin
expect 1 'usable: missing' '{}' round_robin
expect 1 'input: expected an object, got array' '[]' round_robin
expect 2 'not JSON' 'x' round_robin
expect 2 'not JSON' '' round_robin
expect 2 'no decision called nonsense' '{}' nonsense
expect 2 'no decision called nonsense' '' --schema nonsense
expect 2 'name a decision' ''
exit $failed
