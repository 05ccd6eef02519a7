# Runs as root in a new Debian that has what the package depends on. /trial has the package, the
# embedded model as a folder, and a document.
set -eu

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

listing() {
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /trial \
        -o -path /home \) -prune -o -print | LC_ALL=C sort
}

# A program that runs as another person than root, with an environment of its own.
as_reader="setpriv --reuid=reader --regid=reader --init-groups env -i PATH=/usr/bin:/bin \
    HOME=/home/reader LANG=C.UTF-8 XDG_RUNTIME_DIR=/home/reader DISPLAY=:7"

useradd --create-home reader
# What dpkg writes beside its lists, whatever the package.
dpkg --configure --pending
touch /var/lib/dpkg/status-old /var/lib/dpkg/diversions-old
listing >/trial/before

echo "== install"
dpkg --install /trial/longview.deb
for program in longview longview-desktop; do
    ldd "/usr/bin/$program" | grep 'not found' && fail "$program lacks a library"
done
dpkg --verify longview || fail "files differ from what the package says"

echo "== desktop"
grep -q '^application/pdf=.*longview.desktop' /usr/share/applications/mimeinfo.cache ||
    fail "no desktop entry for PDF files"
grep -q '^application/x-longview-session=.*longview.desktop' \
    /usr/share/applications/mimeinfo.cache || fail "no desktop entry for session files"
grep -q '^application/x-gguf=longview-model.desktop' /usr/share/applications/mimeinfo.cache ||
    fail "no desktop entry for GGUF files"
grep -q 'application/x-longview-session:\*.lvs' /usr/share/mime/globs2 || fail "no type of sessions"

echo "== command line"
$as_reader longview --version
$as_reader longview doctor
$as_reader longview run --model /trial/model --file /trial/document.txt --temp 0 --predict 48 \
    --prompt "What is the special magic number for quiet-harbour mentioned in the provided text?" \
    >/trial/answer.txt
cat /trial/answer.txt
grep -q 2019860 /trial/answer.txt || fail "the answer is not 2019860"

echo "== window"
mkdir /trial/screen
Xvfb :7 -screen 0 1280x840x24 -nolisten tcp -fbdir /trial/screen &
screen=$!
for _ in $(seq 100); do
    [ -e /tmp/.X11-unix/X7 ] && break
    sleep 0.1
done
$as_reader timeout 120 longview-desktop --device cpu --exit-after-start \
    /trial/document.txt || fail "the app does not start"
$as_reader longview-desktop --device cpu /trial/document.txt &
app=$!
sleep 8
cp /trial/screen/Xvfb_screen0 /trial/window.xwd
kill -0 $app || fail "the app has ended by itself"
kill $app
wait $app || true
kill $screen
wait $screen || true

echo "== remove"
dpkg --purge longview
listing >/trial/after
diff /trial/before /trial/after || fail "removing the package leaves files, or takes others"
echo "installed, started and removed"
