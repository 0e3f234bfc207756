#!/usr/bin/env bash
# Runs the test suite: one case of every kind; with --full also the large counts. Further arguments go to pytest.
set -euo pipefail
EXTRAS="[test,dev]"
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

selection="not full"
if [ "${1:-}" = "--full" ]; then
    selection="full or not full"
    shift
fi
extensions="$(mktemp -d)"
trap 'rm -rf "$extensions"' EXIT
export TORCH_EXTENSIONS_DIR="$extensions" OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
ruff check ds_hymotion launch tests
mypy
# Two at a time, a file's tests in one process: each of the two keeps its own pool of ranks.
python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m "$selection" "$@"
