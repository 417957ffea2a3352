# Makes a fresh server ready for Ansible. In: WAIT_S, PACKAGES, PRETEND. Out: changed=1, python=PATH, group=NAME;
# then system and GPUs, for the roles that see to drivers (gpu.sh is appended to this file).
LC_ALL=C; export LC_ALL
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin; export PATH
end=$(($(date +%s) + WAIT_S))
have() { command -v "$1" >/dev/null 2>&1; }
say() { printf '%s=%s\n' "$1" "$2"; }
# An installation of ours that is cut off leaves commands that run and packages that are not configured: it is noted.
begun=/var/lib/deployctl/installing
over() { rm -f "$begun"; rmdir "${begun%/*}" 2>/dev/null; }
fail() { over; echo "bootstrap: $*" >&2; exit 1; }

find_python() {
  for name in python3 /usr/libexec/platform-python python3.14 python3.13 python3.12 python3.11 python3.10 python3.9 python3.8; do
    have "$name" || continue
    path=$("$name" -c 'import sys; sys.version_info >= (3, 8) and print(sys.executable)' 2>/dev/null)
    [ -n "$path" ] && { echo "$path"; return; }
  done
}

missing= mended=
[ -n "$(find_python)" ] || missing=python3
for pair in $PACKAGES; do have "${pair%%:*}" || missing="$missing ${pair#*:}"; done
[ ! -s "$begun" ] || missing="$missing $(cat "$begun")"

if [ -n "$missing" ] && [ -z "$PRETEND" ]; then
  [ "$(id -u)" = 0 ] || fail "missing:$missing; installing needs root: use a user with sudo"
  # A fresh machine is still busy with itself.
  if have cloud-init; then timeout "$WAIT_S" cloud-init status --wait >/dev/null 2>&1; fi
  # The package manager's own time-out covers one of its locks only: try again while another process holds one.
  # A reboot in mid-installation leaves packages half configured; apt does nothing until that is finished.
  try() {
    while :; do
      output=$("$@" 2>&1) && return 0
      case $output in
        *"Could not get lock"*|*"Unable to acquire"*|*"Waiting for process"*|*"is another process using it"*|*"lock is held"*) ;;
        *"dpkg was interrupted"*) [ -z "$mended" ] || fail "dpkg --configure -a did not help: $output"
          mended=1; dpkg --configure -a --force-confdef --force-confold >/dev/null 2>&1; continue ;;
        *) fail "$* failed: $(printf '%s' "$output" | tail -n 3 | tr '\n' ' ')" ;;
      esac
      [ "$(date +%s)" -lt "$end" ] || fail "another package manager held its lock for $WAIT_S s: $(printf '%s' "$output" | tail -n 1)"
      sleep 3
    done
  }
  mkdir -p "${begun%/*}" && echo "$missing" >"$begun"
  if have apt-get; then
    DEBIAN_FRONTEND=noninteractive; export DEBIAN_FRONTEND
    try apt-get -qq -o DPkg::Lock::Timeout=60 update
    # shellcheck disable=SC2086
    try apt-get -qq -y --no-install-recommends -o DPkg::Lock::Timeout=60 install $missing
  elif have dnf; then
    # shellcheck disable=SC2086
    try dnf -q -y install $missing
  else
    fail "missing:$missing; neither apt-get nor dnf is here to install them"
  fi
  over
fi
[ -z "$missing" ] || echo "changed=1 missing=$missing"
python=$(find_python)
[ -n "$python" ] || [ -n "$PRETEND" ] || fail "no Python 3.8 or newer"
echo "python=$python"
for group in render video; do getent group "$group" >/dev/null 2>&1 && echo "group=$group"; done
[ -r /etc/os-release ] && ( . /etc/os-release; echo "os=$ID ${VERSION_ID%%.*} ${VERSION_CODENAME:-none}" )
echo "kernel=$(uname -r)"
echo "machine=$(uname -m)"
