#!/usr/bin/env bash
# Installs the distribution packages that Troupe needs (Debian 12, Ubuntu 24.04).
#   ./install-deps.sh build        what building and running needs
#   ./install-deps.sh build test   what the tests need too
set -euo pipefail
cd "$(dirname "$0")"
[ $# -gt 0 ] || set -- build test
wanted=()
for group in "$@"; do
  case $group in build | test) ;; *) echo "install-deps.sh: unknown group '$group' (build, test)" >&2; exit 2 ;; esac
  while read -r g package; do [ "$g" = "$group" ] && wanted+=("$package"); done < cmake/packages.txt
done
missing=()
for package in "${wanted[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
echo "installing: ${missing[*]}" >&2
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "install-deps.sh: run as root, or install sudo; missing: ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi
"${as_root[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
