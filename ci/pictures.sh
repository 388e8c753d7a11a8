#!/usr/bin/env bash
# Creates docs/pictures from the demo: the page of `jitlisten lines --html` in light and dark mode, a flame graph, and
# `jitlisten top`.
#
#   ci/pictures.sh [FILE.perf.data]     without a file, the demo is recorded first
#   ci/pictures.sh top                  only `jitlisten top`
#
# Needs chromium, chromedriver, tmux, python3, target/release and the first environment of ci/setup.sh.
set -euo pipefail
# shellcheck source=ci/common.sh
. "$(dirname "$0")/common.sh"

pictures=docs/pictures
scratch=${TMPDIR:-/tmp}/jitlisten-demo
jitlisten=$PWD/target/release/jitlisten
python=$PWD/target/venv/numba-0.68.1/bin/python

mkdir -p "$scratch" $pictures
cp demo/program.py "$scratch/"

# picture PAGE PICTURE WIDTH,HEIGHT: takes a screenshot of a page.
picture() {
    chromium --headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update \
        --disable-sync --user-data-dir="$scratch/browser" --hide-scrollbars --window-size="$3" \
        --screenshot="$PWD/$pictures/$2" "file://$1" 2>/dev/null
    rm -rf "$scratch/browser"
}

# Captures a terminal of 80 by 24 characters, after twelve refreshes that show compiled code.
picture_of_top() {
    local tmux=(tmux -S "$scratch/tmux" -f /dev/null) looks=0 shown=
    (cd "$scratch" && NUMBA_THREADING_LAYER=workqueue LC_ALL=C.UTF-8 PATH=$(dirname "$python"):$PATH \
        "${tmux[@]}" new-session -d -x 80 -y 24 "$jitlisten top -- python program.py 3")
    until [ $looks = 12 ]; do
        sleep 1
        shown=$("${tmux[@]}" capture-pane -e -N -p)
        grep -q accelerations <<<"$shown" && looks=$((looks + 1))
    done
    "${tmux[@]}" send-keys q
    python3 ci/terminal.py <<<"$shown" >"$scratch/top.html"
    picture "$scratch/top.html" top.png 760,490
}

if [ "${1:-}" = top ]; then
    picture_of_top
    exit
fi
recording=${1:-$scratch/perf.data}
if [ $# = 0 ]; then
    NUMBA_THREADING_LAYER=workqueue OPENBLAS_NUM_THREADS=1 "$jitlisten" record -o "$recording" -- "$python" "$scratch/program.py" 1.5
fi
"$jitlisten" lines --html "$scratch/page.html" "$recording"
"$jitlisten" flamegraph --no-compile -o "$scratch/flames.svg" "$recording"
python3 report/tests/browser.py "$scratch/page.html" $pictures
height=$(sed -n 's/.*<svg [^>]*height="\([0-9]*\)".*/\1/p' "$scratch/flames.svg" | head -n 1)
picture "$scratch/flames.svg" flamegraph.png "1200,$height"
picture_of_top
"$jitlisten" lines "$recording"
