#!/usr/bin/env bash
# llama.cpp by way of llama-cpp-python, built for this machine's own instruction set.
set -euo pipefail
source "$(dirname "$0")/environment.sh"
make_environment llama "${1:-}"
CMAKE_ARGS="-DGGML_NATIVE=ON" "${PIP[@]}" install --no-binary llama-cpp-python \
    "llama-cpp-python==0.3.36" "numpy>=1.26"
