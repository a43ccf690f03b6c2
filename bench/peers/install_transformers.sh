#!/usr/bin/env bash
# transformers on torch; gguf and accelerate are what it reads a GGUF file with.
set -euo pipefail
source "$(dirname "$0")/environment.sh"
make_environment transformers "${1:-}"
"${PIP[@]}" install "torch==2.13.0"
"${PIP[@]}" install "transformers==5.24.0" "accelerate>=1.0" "gguf>=0.10" "sentencepiece"
