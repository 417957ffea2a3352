#!/bin/sh
# Written by deployctl. Writes what nvidia-smi says as metrics into the file that is its argument; whole, or not at all.
LC_ALL=C; export LC_ALL
file=$1
fields=index,uuid,pci.bus_id,name,driver_version,utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw
listing=$(nvidia-smi --query-gpu="$fields" --format=csv,noheader,nounits 2>&1); status=$?
[ "$status" = 0 ] || listing=
printf '%s\n' "$listing" | awk -F ', *' -v up="$((status == 0))" '
  function family(name, help, column, factor,   n) {
    printf "# HELP deployctl_gpu_%s %s\n# TYPE deployctl_gpu_%s gauge\n", name, help, name
    for (n = 1; n <= count; n++) if (value[n, column] ~ /^[0-9.]+$/)
      printf "deployctl_gpu_%s{gpu=\"%s\",uuid=\"%s\"} %.12g\n", name, value[n, 1], value[n, 2], value[n, column] * factor
  }
  NF >= 10 { count++; for (i = 1; i <= 10; i++) { gsub(/["\\]/, "", $i); value[count, i] = $i } }
  END {
    print "# HELP deployctl_gpu_driver_up 1 if nvidia-smi answered.\n# TYPE deployctl_gpu_driver_up gauge"
    print "deployctl_gpu_driver_up " up
    print "# HELP deployctl_gpu_info Which card it is.\n# TYPE deployctl_gpu_info gauge"
    for (n = 1; n <= count; n++)
      printf "deployctl_gpu_info{gpu=\"%s\",uuid=\"%s\",bus=\"%s\",name=\"%s\",driver=\"%s\"} 1\n", \
        value[n, 1], value[n, 2], value[n, 3], value[n, 4], value[n, 5]
    family("busy_ratio", "Share of the last moments in which the card computed.", 6, 0.01)
    family("memory_used_bytes", "Memory in use.", 7, 1048576)
    family("memory_total_bytes", "Memory of the card.", 8, 1048576)
    family("temperature_celsius", "Temperature of the card.", 9, 1)
    family("power_watts", "What the card draws.", 10, 1)
  }' >"$file.$$" && chmod 0644 "$file.$$" && mv "$file.$$" "$file"
