# Sourced by quickstart.sh and test.sh: makes .venv with what the project needs, once.
# PYTHON chooses the interpreter (3.10 or newer).

cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON="${PYTHON:-python3}"

need() { echo "error: $1" >&2; exit 2; }

command -v "$PYTHON" >/dev/null || need "no $PYTHON found; install Python 3.10 or newer, or set PYTHON to one"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
    || need "$("$PYTHON" --version) is too old; install Python 3.10 or newer, or set PYTHON to one"
"$PYTHON" -c 'import venv, ensurepip' 2>/dev/null \
    || need "$PYTHON has no venv module; install it (Debian: apt-get install python3-venv)"
command -v g++ >/dev/null || command -v c++ >/dev/null \
    || need "no C++ compiler found; install g++ (Debian: apt-get install g++), DeepSpeed compiles with it"

# The environment is made anew when what it should hold has changed; one with test tools serves the quickstart too.
wanted="$(cat pyproject.toml launch/constraints.txt | cksum)${EXTRAS:=}"
made="$(cat .venv/.made_from 2>/dev/null || true)"
if [ "$made" != "$wanted" ] && { [ -n "$EXTRAS" ] || [ "${made%%[*}" != "$wanted" ]; }; then
    echo "making .venv (downloads PyTorch and DeepSpeed; a few minutes)"
    [ -x .venv/bin/python ] || "$PYTHON" -m venv .venv || need "could not make .venv"
    # torch first and pinned: a dependency that asks for any torch would bring another build.
    .venv/bin/python -m pip install -q -c launch/constraints.txt torch \
        && DS_BUILD_OPS=0 .venv/bin/python -m pip install -q -c launch/constraints.txt -e ".${EXTRAS}" \
        || need "pip could not install the dependencies; see its message above"
    echo "$wanted" > .venv/.made_from
fi
export PATH="$PWD/.venv/bin:$PATH"
if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L 2>/dev/null | grep -q GPU; then
    export DS_ACCELERATOR=cpu OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
fi
