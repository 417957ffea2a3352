# GPUs: what sits on the bus, then what a driver says of it.
for device in /sys/bus/pci/devices/*; do
  [ -r "$device/class" ] && read -r class <"$device/class" || continue
  case $class in 0x0300*|0x0302*|0x0380*|0x1200*) ;; *) continue ;; esac
  say pci "${device##*/} $(cat "$device/vendor") $(cat "$device/device") $class"
done
if have lspci; then
  lspci -Dnn 2>/dev/null | while IFS= read -r line; do
    case $line in *\[0300\]:*|*\[0302\]:*|*\[0380\]:*|*\[1200\]:*) say lspci "$line" ;; esac
  done
fi
for name in nvidia amdgpu; do
  [ -r "/sys/module/$name/version" ] && say "${name}_module" "$(cat "/sys/module/$name/version")"
done
[ -d /sys/module/nouveau ] && say nouveau 1
for variable in /sys/firmware/efi/efivars/SecureBoot-*; do
  [ -r "$variable" ] && say secure_boot "$(od -An -t u1 "$variable" 2>/dev/null | tr -d '\n' | sed 's/.* //')"
done
if have nvidia-smi; then
  if listing=$(nvidia-smi --query-gpu=pci.bus_id,memory.total,driver_version,compute_cap,name --format=csv,noheader,nounits 2>&1); then
    printf '%s\n' "$listing" | while IFS= read -r line; do [ -n "$line" ] && say nvidia "$line"; done
  else
    say nvidia_error "$(printf '%s' "$listing" | tr '\n' ' ')"
  fi
fi
for card in /sys/class/drm/card*; do
  [ -r "$card/device/mem_info_vram_total" ] || continue
  name=$(cat "$card/device/product_name" 2>/dev/null)
  address=$(readlink -f "$card/device")
  version=$(cat /sys/module/amdgpu/version 2>/dev/null)
  say amd "${address##*/}, $(cat "$card/device/mem_info_vram_total"), $version, $name"
done
true
