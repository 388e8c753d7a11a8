#!/usr/bin/env bash
# Opens the output of `jitlisten export` in the programs that it is intended for, because the test suite checks only
# the formats. Uses the Firefox Profiler's own code (as profiler-cli), and speedscope in headless Chromium. Run by hand:
# needs node, npm and chromium.
#
#   ci/readers.sh [SCREENSHOT.png of speedscope]
set -euo pipefail
# shellcheck source=ci/common.sh
. "$(dirname "$0")/common.sh"

readers=$PWD/target/readers
scratch=$(mktemp -d)
export HOME=$scratch
profiler=$readers/node_modules/.bin/profiler-cli
trap '"$profiler" stop --all >/dev/null 2>&1 || true; rm -rf "$scratch"' EXIT
npm install --silent --no-audit --no-fund --prefix "$readers" speedscope@1.25.0 @firefox-devtools/profiler-cli@0.10.0

export_as() {
    target/release/jitlisten export report/testdata/sides/perf.data --root report/testdata/sides/root -f "$1" -o "$scratch/$1.json"
}

export_as firefox
# On a busy machine, the first attempt may time out.
"$profiler" load "$scratch/firefox.json" >/dev/null 2>&1 || sleep 5
threads=$("$profiler" thread list)
functions=$("$profiler" thread functions)
for seen in 'Threads (3 threads across 1 process)' 'python   19001'; do grep -qF "$seen" <<<"$threads"; done
for seen in '__main__.fibonacci(int64) [v21] - self: 434.34ms (12.6%)' 'bell - self: 40.404ms (1.2%)'; do grep -qF "$seen" <<<"$functions"; done
grep -qF '[tid 19001] - 3424.239ms' <<<"$("$profiler" profile info)"
echo "Firefox Profiler: 3 threads, their processor time, functions and shares of it"

export_as speedscope
base64 -w 0 "$scratch/speedscope.json" | sed 's/.*/speedscope.loadFileFromBase64("jitlisten", "&")/' >"$scratch/load.js"
page=file://$readers/node_modules/speedscope/dist/release/index.html#localProfilePath=$scratch/load.js
chromium --headless --no-sandbox --enable-unsafe-swiftshader --no-first-run --disable-background-networking --disable-sync \
    --allow-file-access-from-files --user-data-dir="$scratch/browser" --window-size=1200,600 --virtual-time-budget=20000 \
    --dump-dom "$page" 2>/dev/null >"$scratch/dom"
grep -q 'python 19001' "$scratch/dom"
echo "speedscope: the first of 3 threads is shown"
if [ $# = 1 ]; then
    chromium --headless --no-sandbox --enable-unsafe-swiftshader --no-first-run --disable-background-networking --disable-sync \
        --allow-file-access-from-files --user-data-dir="$scratch/browser" --window-size=1200,600 --virtual-time-budget=20000 \
        --screenshot="$1" "$page" 2>/dev/null
fi
