#!/usr/bin/env bash
# ik_llama.cpp, a fork with kernels of its own for quantized caches, built for this machine.
# Gives up after BUILD_SECONDS (12 minutes unless set): its kernels take long to compile.
set -euo pipefail
source "$(dirname "$0")/environment.sh"
make_environment ik_llama "${1:-}"
CMAKE_ARGS="-DGGML_NATIVE=ON" timeout "${BUILD_SECONDS:-720}" nice -n 19 "${PIP[@]}" install \
    --no-binary ik-llama-cpp-python "ik-llama-cpp-python==0.1.5" "numpy>=1.26" || {
    echo "ik_llama.cpp was not built; its rows are left out of the comparison" >&2
    exit 1
}
