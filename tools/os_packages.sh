#!/usr/bin/env bash
# Install the Debian packages named as arguments, those that are missing, where apt-get and the right to use it are at hand.
# Elsewhere say what is missing and go on: what needs them says so itself.
set -u
missing=()
for package in "$@"; do
    [ "$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null)" = "install ok installed" ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
if ! command -v apt-get >/dev/null; then echo "no apt-get here; not installed: ${missing[*]}"; exit 0; fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if sudo -n true 2>/dev/null; then as_root=(sudo -n); else echo "not root; install by hand: apt-get install ${missing[*]}"; exit 0; fi
fi
echo "installing ${missing[*]}"
log=$(mktemp)
install() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "$@" >>"$log" 2>&1; }
if ! { install update -q && install install -q -y --no-install-recommends "${missing[@]}"; }; then
    tail -n 20 "$log"
    echo "apt-get could not install ${missing[*]}; going on without"
fi
rm -f "$log"
