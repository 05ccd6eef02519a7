#!/bin/sh
# Every test and bench of Longview's CUDA backend on this machine's GPU; see README.md.
#
# Without options all of it, then the desktop app, then the kernels once more under
# compute-sanitizer where that is found; options go to longview-gpu. Exit codes: 0 all right, 1
# something failed, 2 a wrong call, 3 NOT RUN.
set -u
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
# The binary looks for its files there.
LONGVIEW_FILES=$here
export LONGVIEW_FILES

if ! "$here/longview-gpu" --version; then
    echo "NOT RUN: longview-gpu does not start here (see above): it is for Linux on x86-64, with"
    echo "a C library that is not older than the one of the build (BUILD.txt)"
    exit 3
fi
cat "$here/BUILD.txt"
"$here/longview-gpu" "$@"
status=$?
if [ $# -gt 0 ] || [ $status -ne 0 ]; then
    exit $status
fi

# The app is a window: 3 says that there is no screen for one.
echo
echo "== longview-desktop"
"$here/desktop.sh" cuda
case $? in 0 | 3) ;; *) status=1 ;; esac

if ! command -v compute-sanitizer >/dev/null; then
    echo "NOT RUN: compute-sanitizer (it comes with the CUDA toolkit) is not on the PATH"
    exit $status
fi
for tool in memcheck racecheck initcheck; do
    echo
    echo "== compute-sanitizer --tool $tool"
    compute-sanitizer --tool $tool --error-exitcode 1 "$here/longview-gpu" --only parity || status=1
done
exit $status
