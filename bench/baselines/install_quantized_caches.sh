#!/usr/bin/env bash
# transformers with both packages that its QuantizedCache can use, as they were for the published
# figures; gguf and accelerate are what it reads a GGUF file with.
set -euo pipefail
source "$(dirname "$0")/../peers/environment.sh"
make_environment quantized_caches "${1:-}"
"${PIP[@]}" install "torch==2.13.0"
"${PIP[@]}" install "transformers==5.2.0" "optimum-quanto==0.2.7" "hqq==0.2.8.post1" \
    "accelerate>=1.0" "gguf>=0.10" "sentencepiece"
# quanto compiles its unpacking on first use, with the ninja that came with it: better now.
PATH="$FOLDER/bin:$PATH" "$FOLDER/bin/python" -c \
    "from optimum.quanto.library.extensions.cpp import ext; ext.lib"
