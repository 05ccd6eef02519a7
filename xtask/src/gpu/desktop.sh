#!/bin/sh
# The desktop app on a device: it opens a window, reads a file, answers a question and ends.
#
# The device is the one option (cuda, if there is none). Without a display the window opens on one
# that nobody sees (Xvfb). Exit codes: 0 the right answer, 1 another one or none, 3 NOT RUN.
set -u
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
device=${1:-cuda}
folder=$(mktemp -d) || exit 1
screen=
clean() {
    [ -z "$screen" ] || kill "$screen" 2>/dev/null
    rm -rf "$folder"
}
trap clean EXIT

if [ -z "${DISPLAY:-}${WAYLAND_DISPLAY:-}" ]; then
    if ! command -v Xvfb >/dev/null; then
        echo "NOT RUN: there is neither a display nor Xvfb for the window of longview-desktop"
        exit 3
    fi
    Xvfb -displayfd 3 -screen 0 1280x840x24 -nolisten tcp 3>"$folder/display" 2>/dev/null &
    screen=$!
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        [ -s "$folder/display" ] && break
        sleep 1
    done
    DISPLAY=:$(cat "$folder/display")
    export DISPLAY
fi

i=0
while [ $i -lt 60 ]; do
    echo "A captain looked upon the harbour. His brother left a letter."
    [ $i -ne 30 ] || echo "One of the special magic numbers for quiet-harbour is: 2019860."
    i=$((i + 1))
done >"$folder/harbours.txt"
LONGVIEW_LIBRARY=$folder/library
XDG_DATA_HOME=$folder/data
XDG_CONFIG_HOME=$folder/config
XDG_RUNTIME_DIR=$folder
export LONGVIEW_LIBRARY XDG_DATA_HOME XDG_CONFIG_HOME XDG_RUNTIME_DIR
timeout 300 "$here/longview-desktop" --device "$device" --read --exit-after-answer --ask \
    "What is the special magic number for quiet-harbour mentioned in the provided text?" \
    "$folder/harbours.txt" || {
    echo "FAILED: longview-desktop on $device ends with $?"
    exit 1
}
# What was asked is kept when the program ends.
if grep -q '"text":"[^"]*2019860' "$folder"/data/longview/conversations/*.json; then
    echo "longview-desktop on $device: the right answer"
else
    echo "FAILED: longview-desktop on $device does not answer 2019860"
    exit 1
fi
