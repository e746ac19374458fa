# Print what accelerators do now, one reading a line, for usage.py and device_metrics.py. POSIX sh; what cannot be read is left out.
# $gpu_wanted: further fields, each left out where the driver does not know it; $gpu_fields: what was found to be known before.
LC_ALL=C
export LC_ALL

# A driver that hangs must not hang the reading.
if command -v timeout >/dev/null 2>&1; then patient='timeout 5'; else patient=''; fi

ask_gpus() {
    $patient nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits 2>/dev/null </dev/null |
        sed -n 's/^ *\([0-9][0-9]*,\)/gpu \1/p'
}

if command -v nvidia-smi >/dev/null 2>&1; then
    echo "visible gpu ${CUDA_VISIBLE_DEVICES-all}"
    basic=index,name,utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw
    fields=${gpu_fields:-$basic}
    if [ -n "${gpu_wanted-}" ] && [ -z "${gpu_fields-}" ]; then
        # One field that a driver does not know spoils the whole answer.
        names=$($patient nvidia-smi --help-query-gpu 2>/dev/null </dev/null)
        for field in $gpu_wanted; do
            case $names in *"\"$field\""*) fields=$fields,$field ;; esac
        done
    fi
    found=$(ask_gpus "$fields")
    learnt=$fields
    if [ -z "$found" ] && [ "$fields" != "$basic" ]; then
        fields=$basic
        found=$(ask_gpus "$basic")
        # What it knew before, it may know again; what it said it knows and does not, is not asked again.
        if [ -n "${gpu_fields-}" ]; then learnt=''; else learnt=$basic; fi
    fi
    [ -n "$found" ] || learnt=''
    if [ -n "${gpu_wanted-}" ]; then
        echo "known gpu_fields $learnt"
        echo "columns gpu $fields"
    fi
    [ -z "$found" ] || printf '%s\n' "$found"
fi
if command -v npu-smi >/dev/null 2>&1; then
    echo "visible npu ${ASCEND_RT_VISIBLE_DEVICES-all}"
    for id in $($patient npu-smi info -l 2>/dev/null </dev/null | sed -n 's/.*NPU ID[^:]*: *\([0-9]*\).*/\1/p'); do
        echo "npu NPU ID : $id"
        $patient npu-smi info -t usages -i "$id" 2>/dev/null </dev/null | sed 's/^[[:space:]]*/npu /'
    done
fi
exit 0
