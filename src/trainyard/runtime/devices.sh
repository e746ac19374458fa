# Print what accelerators do now, one reading a line, for usage.py. POSIX sh; what cannot be read is left out.
LC_ALL=C
export LC_ALL

# A driver that hangs must not hang the reading.
if command -v timeout >/dev/null 2>&1; then patient='timeout 5'; else patient=''; fi
if command -v nvidia-smi >/dev/null 2>&1; then
    echo "visible gpu ${CUDA_VISIBLE_DEVICES-all}"
    fields=index,name,utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw
    $patient nvidia-smi --query-gpu=$fields --format=csv,noheader,nounits 2>/dev/null </dev/null | sed 's/^/gpu /'
fi
if command -v npu-smi >/dev/null 2>&1; then
    echo "visible npu ${ASCEND_RT_VISIBLE_DEVICES-all}"
    for id in $($patient npu-smi info -l 2>/dev/null </dev/null | sed -n 's/.*NPU ID[^:]*: *\([0-9]*\).*/\1/p'); do
        echo "npu NPU ID : $id"
        $patient npu-smi info -t usages -i "$id" 2>/dev/null </dev/null | sed 's/^[[:space:]]*/npu /'
    done
fi
exit 0
