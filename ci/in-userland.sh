#!/usr/bin/env bash
# Runs a command in a userland that ci/userland.sh created, in a separate mount namespace. /proc, /sys and /dev are
# those of this machine, the repository has the same path as here, and /tmp is empty. The mounts disappear with the
# command.
#
#   ci/in-userland.sh NAME COMMAND...
set -euo pipefail
# shellcheck source=ci/common.sh
. "$(dirname "$0")/common.sh"

root=$(realpath "target/userlands/${1:?a userland}")
shift
# Never asks for a password, and keeps the environment.
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n --preserve-env "$@"; fi; }

# shellcheck disable=SC2016 # the inner shell expands these variables
as_root unshare --mount sh -euc '
    root=$1 repository=$2
    shift 2
    mount -t tmpfs tmpfs "$root/tmp"
    chmod 1777 "$root/tmp"
    for directory in /proc /sys /dev; do mount --rbind "$directory" "$root$directory"; done
    mkdir -p "$root$repository"
    mount --bind "$repository" "$root$repository"
    exec chroot "$root" env -i HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        ${CI:+CI="$CI"} sh -euc "cd \"\$0\"; exec \"\$@\"" "$repository" "$@"
' sh "$root" "$PWD" "$@"
