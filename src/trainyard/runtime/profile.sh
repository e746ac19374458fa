# Print what only slow tools tell of NVIDIA devices, for device_metrics.py: counters of DCGM, where it runs, else the PCIe columns of
# nvidia-smi. POSIX sh; takes seconds, so nobody waits for it. $dcgm_groups: fields that are known together or not at all;
# $dcgm_fields: what was found to be known before; none: DCGM does not answer.
LC_ALL=C
export LC_ALL

if command -v timeout >/dev/null 2>&1; then patient='timeout 10'; else patient=''; fi

# Rows of whole devices: neither heads, which are repeated, nor parts of devices (GPU-I, GPU-CI). The first column is the UUID.
ask_dcgm() {
    $patient dcgmi dmon -e "54,$1" -d 1000 -c "$2" 2>/dev/null </dev/null |
        sed -n 's/[[:space:]]\{1,\}/ /g; s/^ //; s/^GPU //; s/^\([0-9][0-9]* \)/dcgm \1/p'
}

dcgm_fields=${dcgm_fields-}
if [ "$dcgm_fields" != none ] && command -v dcgmi >/dev/null 2>&1; then
    if [ -z "$dcgm_fields" ]; then
        # One group that a device or a version does not know spoils the whole answer.
        for group in ${dcgm_groups-}; do
            [ -z "$(ask_dcgm "$group" 1)" ] || dcgm_fields=$dcgm_fields${dcgm_fields:+,}$group
        done
    fi
    found=''
    # Profiled figures are of the time since the row before, so the first has none.
    [ -z "$dcgm_fields" ] || found=$(ask_dcgm "$dcgm_fields" 3)
    if [ -n "$found" ]; then
        echo "columns dcgm $dcgm_fields"
        printf '%s\n' "$found"
    else
        dcgm_fields=none
    fi
fi
echo "known dcgm_fields $dcgm_fields"
case ,$dcgm_fields, in
*,200,*) ;;
*)
    if command -v nvidia-smi >/dev/null 2>&1; then
        $patient nvidia-smi dmon -s et -c 1 2>/dev/null </dev/null |
            sed -n 's/[[:space:]]\{1,\}/ /g; s/^ //; s/^# *gpu /columns dmon /p; s/^\([0-9][0-9]* \)/dmon \1/p'
    fi
    ;;
esac
exit 0
