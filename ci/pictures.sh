#!/usr/bin/env bash
# Makes docs/pictures from the demo: the page of `jitlisten lines --html` in light and dark, and a flame graph.
#
#   ci/pictures.sh [FILE.perf.data]     without a file, the demo is recorded under perf first
#
# Needs chromium, chromedriver and python3; without a file also perf and the first environment of ci/setup.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

pictures=docs/pictures
scratch=${TMPDIR:-/tmp}/jitlisten-demo
jitlisten=$PWD/target/release/jitlisten
python=$PWD/target/venv/numba-0.68.1/bin/python

mkdir -p "$scratch" $pictures
recording=${1:-$scratch/perf.data}
if [ $# = 0 ]; then
    cp demo/program.py "$scratch/"
    NUMBA_THREADING_LAYER=workqueue OPENBLAS_NUM_THREADS=1 perf record -q -e cpu-clock:u -F 199 -g -o "$recording" -- \
        "$jitlisten" run -- "$python" "$scratch/program.py" 1.5
fi
"$jitlisten" lines --html "$scratch/page.html" "$recording"
"$jitlisten" flamegraph -o "$scratch/flames.svg" "$recording"
python3 report/tests/browser.py "$scratch/page.html" $pictures
chromium --headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update \
    --disable-sync --user-data-dir="$scratch/browser" --hide-scrollbars --window-size=1200,700 \
    --screenshot="$PWD/$pictures/flamegraph.png" "file://$scratch/flames.svg" 2>/dev/null
rm -rf "$scratch/browser"
"$jitlisten" lines "$recording"
