# Sourced by the install scripts: makes the environment of one peer and puts its pip in PIP.
#
#   make_environment NAME [FOLDER]
#
# The folder is the argument, else $KVIK_PEERS/NAME, else NAME in the user's cache folder.
make_environment() {
    local cache="${XDG_CACHE_HOME:-$HOME/.cache}/kvik/peers"
    FOLDER="${2:-${KVIK_PEERS:-$cache}/$1}"
    "${PYTHON:-python3}" -m venv "$FOLDER"
    PIP=("$FOLDER/bin/python" -m pip --disable-pip-version-check)
    export MAKEFLAGS="${MAKEFLAGS:--j$(nproc)}" CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}"
}
