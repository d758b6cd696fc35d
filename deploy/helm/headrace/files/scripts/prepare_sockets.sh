# The node's directory of sockets for a worker that is not root: prepare_sockets PATH USER GROUP makes PATH/sockets and gives it to
# USER. Run as root of the node, so it gives away nothing but the directory that it has just made: what is there already, whatever
# PATH was named, keeps its owner and mode. Group and mode for trainers are the worker's to set, whose directory it then is.
set -eu
path=$1 user=$2 group=$3

refuse() {
  echo "headrace: $1; nothing was changed: name another directory in sockets.path, or see to that one yourself and set sockets.prepare: false" >&2
  exit 1
}

made_before() {
  [ -e "$path/sockets" ] || [ -L "$path/sockets" ] || return 1
  [ -d "$path/sockets" ] && [ ! -L "$path/sockets" ] && [ "$(stat -c %u "$path/sockets")" = "$user" ] ||
    refuse "$path/sockets is there and is no directory of the worker's user $user"
}

! made_before || exit 0
owner=$(stat -c %u "$path")
[ "$owner" != "$user" ] || exit 0 # the worker makes it itself, in a directory of its own
[ "$owner" = 0 ] || refuse "$path belongs to user $owner, neither root nor the worker's user $user"
# Given away under a name that nobody looks for, so that one who finds `sockets` finds it whole. -n: another pod may be first.
new=$(mktemp -d "$path/.sockets.XXXXXX")
chown -h "$user:$group" "$new"
mv -nT "$new" "$path/sockets" || true
[ ! -d "$new" ] || rmdir "$new"
made_before
