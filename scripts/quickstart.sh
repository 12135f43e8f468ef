#!/usr/bin/env bash
# Trains WideNet-Tiny on real handwritten digits, on this machine, with all set-up of its own.
#
#   scripts/quickstart.sh [--workdir=DIR] [--config.FIELD=VALUE ...]
#
# The same command again goes on where a stopped run was, or reports the finished one.
set -euo pipefail
source "$(dirname "$0")/environment.sh"
install ""
exec "$python" -m widenet_jax.main --config=configs/digits.py --workdir=runs/quickstart "$@"
