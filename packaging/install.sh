#!/bin/sh
# Installs Plimsoll @VERSION@ into ~/.local/bin, or into $PLIMSOLL_BIN. It checks the archive by the checksum that stands
# below, and installs nothing if that is another.
set -eu
version=@VERSION@
from=${PLIMSOLL_FROM:-https://github.com/@REPOSITORY@/releases/download/v$version}
to=${PLIMSOLL_BIN:-$HOME/.local/bin}
sums='@SUMS@'

fail() { echo "install: $*" >&2; exit 1; }
case "$(uname -s)-$(uname -m)" in
    Linux-x86_64) target=x86_64-unknown-linux-musl ;;
    Linux-aarch64 | Linux-arm64) target=aarch64-unknown-linux-musl ;;
    Darwin-arm64) target=aarch64-apple-darwin ;;
    *) fail "there is no binary for $(uname -s) on $(uname -m); build it with cargo" ;;
esac
archive=plimsoll-$version-$target.tar.gz
expected=$(printf '%s\n' "$sums" | sed -n "s/  $archive\$//p")
[ -n "$expected" ] || fail "this release has no $archive"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if command -v curl >/dev/null; then
    curl -fsSL -o "$work/$archive" "$from/$archive" || fail "cannot download $from/$archive"
elif command -v wget >/dev/null; then
    wget -q -O "$work/$archive" "$from/$archive" || fail "cannot download $from/$archive"
else
    fail "curl or wget is needed"
fi
if command -v sha256sum >/dev/null; then
    actual=$(sha256sum "$work/$archive" | cut -d' ' -f1)
else
    actual=$(shasum -a 256 "$work/$archive" | cut -d' ' -f1)
fi
[ "$actual" = "$expected" ] || fail "$archive has the checksum $actual, not $expected; nothing was installed"

tar -xzf "$work/$archive" -C "$work"
mkdir -p "$to"
# Beside the old one and then in its place: a running Plimsoll keeps its file.
cp "$work/plimsoll-$version-$target/plimsoll" "$to/.plimsoll.new"
chmod 755 "$to/.plimsoll.new"
mv -f "$to/.plimsoll.new" "$to/plimsoll"
echo "installed $to/plimsoll: $("$to/plimsoll" --version)"
case ":$PATH:" in *":$to:"*) ;; *) echo "$to is not in your PATH" ;; esac
