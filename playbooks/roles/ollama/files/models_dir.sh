# Can the server's user get to the models directory, and is its disk there? In: MODELS_DIR, MODELS_USER. Silent where all is well.
LC_ALL=C; export LC_ALL
path=$MODELS_DIR user=$MODELS_USER
fail() { echo "$*" >&2; exit 1; }

# A disk that is not mounted is an empty folder like any other: the models would fill the system's own disk.
[ -r /etc/fstab ] && while read -r device mount rest; do
  case $device,$mount in \#*|*,/|*,swap|*,none) continue ;; esac
  case $path/ in "${mount%/}"/*) mountpoint -q "$mount" || fail "$mount is in /etc/fstab and not mounted: mount $mount" ;; esac
done </etc/fstab

parent=${path%/*}
[ -d "${parent:-/}" ] || fail "there is no folder $parent: mount the disk, or mkdir -p $parent"
# Every folder on the way must let the user pass.
while [ -n "$parent" ]; do
  way="$parent $way" parent=${parent%/*}
done
for folder in $way; do
  runuser -u "$user" -- test -x "$folder" ||
    fail "$user may not pass $folder ($(stat -c '%A %U' "$folder")): chmod o+x $folder"
done
exit 0
