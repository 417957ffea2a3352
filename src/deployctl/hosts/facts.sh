# What a host is, as key=value lines. POSIX sh and the tools that every Linux has; reads only, changes nothing.
# A key may repeat (disk, gpu, pci). What cannot be found is left out: absence is the reader's business.
LC_ALL=C; export LC_ALL
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/local/cuda/bin:/opt/rocm/bin; export PATH
say() { printf '%s=%s\n' "$1" "$2"; }
have() { command -v "$1" >/dev/null 2>&1; }
first() { sed -n "s/^$1[[:space:]]*:[[:space:]]*//p" "$2" 2>/dev/null | head -n 1; }

cpu_time() { head -n 1 /proc/stat 2>/dev/null | sed 's/^cpu *//'; }
say facts 1
say stat_begin "$(cpu_time)"
say time "$(date +%s.%N 2>/dev/null)"
if [ -r /etc/os-release ]; then
  ( . /etc/os-release; say os_id "$ID"; say os_version "$VERSION_ID" )
fi
say arch "$(uname -m)"
say kernel "$(uname -r)"
say hostname "$(uname -n)"
say uid "$(id -u)"
say user "$(id -un)"
say home "$HOME"

# CPU: x86 says "model name" and "flags", ARM says "Features" and leaves the name to lscpu.
model=$(first 'model name' /proc/cpuinfo)
if [ -z "$model" ] && have lscpu; then model=$(lscpu | sed -n 's/^Model name:[[:space:]]*//p' | head -n 1); fi
say cpu_model "$model"
flags=$(first flags /proc/cpuinfo)
[ -n "$flags" ] || flags=$(first Features /proc/cpuinfo)
say cpu_flags "$flags"
if have nproc; then say cpus "$(nproc)"; else say cpus "$(grep -c '^processor' /proc/cpuinfo)"; fi

# Nodes of memory: more than one, and a process may run far from its memory.
nodes=0
for node in /sys/devices/system/node/node[0-9]*; do [ -d "$node" ] && nodes=$((nodes + 1)); done
say numa_nodes "$nodes"

# The CPU quota: the smallest along our control group's path, in version 2 (cpu.max) or 1 (cfs_quota_us).
while IFS=: read -r number controllers path; do
  if [ "$number" = 0 ] && [ -z "$controllers" ]; then
    root=/sys/fs/cgroup
    [ -d /sys/fs/cgroup/unified ] && root=/sys/fs/cgroup/unified
    while :; do
      [ -r "$root$path/cpu.max" ] && say cpu_max "$(cat "$root$path/cpu.max")"
      [ -n "$path" ] && [ "$path" != / ] || break
      path=${path%/*}
    done
  else
    case ",$controllers," in *,cpu,*)
      for root in "/sys/fs/cgroup/$controllers" /sys/fs/cgroup/cpu; do
        [ -d "$root" ] || continue
        here=$path
        while :; do
          if [ -r "$root$here/cpu.cfs_quota_us" ]; then
            say cpu_max "$(cat "$root$here/cpu.cfs_quota_us") $(cat "$root$here/cpu.cfs_period_us")"
          fi
          [ -n "$here" ] && [ "$here" != / ] || break
          here=${here%/*}
        done
        break
      done ;;
    esac
  fi
done 2>/dev/null </proc/self/cgroup

# Memory, in the kernel's kB (1024 bytes).
for pair in MemTotal:ram_kb MemAvailable:ram_available_kb SwapTotal:swap_kb; do
  value=$(sed -n "s/^${pair%%:*}:[[:space:]]*\([0-9]*\).*/\1/p" /proc/meminfo)
  [ -n "$value" ] && say "${pair##*:}" "$value"
done

# Disks: every mounted filesystem that has a device, in 1024-byte blocks: size, free, mount point.
df -Pk 2>/dev/null | while read -r device blocks used free share mount; do
  case $device in
    /dev/loop*) case $mount in /snap/*) continue ;; esac ;;
    /dev/*|overlay|rootfs|*:/*) ;;
    *) case $mount in /) ;; *) continue ;; esac ;;
  esac
  case $mount in /etc/hosts|/etc/hostname|/etc/resolv.conf) continue ;; esac
  say disk "$blocks $free $mount"
done

# Mounts from which no program may be started; the kernel's own filesystems are not meant.
while read -r device mount type options rest; do
  case $type in proc|sysfs|devpts|devtmpfs|cgroup*|mqueue|*debugfs|tracefs|securityfs|pstore|bpf|configfs|fusectl|hugetlbfs) continue ;; esac
  case $mount in /dev|/dev/*|/proc/*|/sys/*|/run|/run/*) continue ;; esac
  case ",$options," in *,noexec,*) say noexec "$mount" ;; esac
done 2>/dev/null </proc/mounts

# @gpu.sh

if have systemd-detect-virt; then say virtualization "$(systemd-detect-virt 2>/dev/null)"
elif grep -q '^flags.* hypervisor' /proc/cpuinfo 2>/dev/null; then say virtualization vm
fi
[ -d /run/systemd/system ] && say systemd 1
if [ "$(id -u)" = 0 ]; then say privilege root
elif have sudo; then
  if sudo -n true 2>/dev/null; then say privilege sudo; else say privilege sudo-password; fi
fi
for name in python3 /usr/libexec/platform-python; do
  if have "$name"; then say python "$(command -v "$name") $("$name" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)"; break; fi
done
[ -r /sys/fs/selinux/enforce ] && say selinux "$(cat /sys/fs/selinux/enforce)"

# The ways out: a default route of each family. 00000000 is no destination in particular.
if [ -r /proc/net/route ]; then
  while read -r interface destination gateway rest; do
    [ "$destination" = 00000000 ] && [ "$gateway" != 00000000 ] && { say ipv4 1; break; }
  done </proc/net/route
fi
if [ -r /proc/net/ipv6_route ]; then
  while read -r destination length source slength gateway metric count use flags interface; do
    [ "$destination$length" = 0000000000000000000000000000000000 ] || continue
    [ "$interface" != lo ] && { say ipv6 1; break; }
  done </proc/net/ipv6_route
fi
if have timedatectl; then say ntp "$(timedatectl show -p NTPSynchronized --value 2>/dev/null)"; fi

# An Ollama that is there already: ours, or anybody's.
for name in ollama "$HOME/.local/bin/ollama" /usr/local/bin/ollama; do
  if have "$name"; then
    path=$(command -v "$name")
    say ollama_path "$path"
    real=$(readlink -f "$path")
    prefix=${real%/bin/ollama}
    if [ -e "$prefix/lib/ollama/.deployctl.json" ]; then say ollama_origin deployctl
    elif case $real in /snap/*) true ;; *) false ;; esac; then say ollama_origin snap
    elif have dpkg-query && package=$(dpkg-query -S "$real" 2>/dev/null); then say ollama_origin "package ${package%%:*}"
    elif have rpm && package=$(rpm -qf "$real" 2>/dev/null); then say ollama_origin "package $package"
    elif grep -q '^Description=Ollama Service' /etc/systemd/system/ollama.service 2>/dev/null; then say ollama_origin script
    else say ollama_origin "by hand"
    fi
    say ollama_version "$("$name" --version 2>/dev/null </dev/null | sed -n 's/.*version is \([^[:space:]]*\).*/\1/p' | tail -n 1)"
    break
  fi
done
for entry in /proc/[0-9]*/cmdline; do
  [ -r "$entry" ] || continue
  command=$(tr '\0' ' ' <"$entry" 2>/dev/null)
  case $command in
    ollama\ serve*|*/ollama\ serve*)
      say ollama_running 1
      # In somebody else's container it is none of the host's programs.
      if grep -q -e docker -e libpod -e containerd -e lxc "${entry%/cmdline}/cgroup"; then say ollama_container 1; fi
      break ;;
  esac
done 2>/dev/null
# Somebody listens on Ollama's port, 11434 = 2CAA, in state 0A.
if cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -q ':2CAA [0-9A-F]*:0000 0A'; then say port_taken 1; fi
say stat_end "$(cpu_time)"
say end 1
