"""Stand-ins for nvidia-smi and dcgmi: shell scripts that print what the real ones print, faults and gaps included.

Formats are those of the vendor's own texts: the lists of --help-query-gpu of drivers 418 and 535, an unknown field refused on
standard output, `dcgmi dmon` of DCGM 1.7 to 4 (heads, rows in any order, a first row without profiled figures).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

UUIDS = ("GPU-faae5314-b87e-87c0-400b-b7cfb9e7b310", "GPU-20af7308-7522-d66f-fe01-fb6f0551a4b9")
# Of two devices: a V100 that works, and one whose driver tells next to nothing.
CARDS: Mapping[str, tuple[str, str]] = {
    "index": ("0", "1"),
    "name": ("Tesla V100", "Tesla V100"),
    "utilization.gpu": ("73", "0"),
    "memory.used": ("8000", "100"),
    "memory.total": ("16000", "16000"),
    "temperature.gpu": ("60", "40"),
    "power.draw": ("200.50", "[N/A]"),
    "uuid": UUIDS,
    "utilization.memory": ("31", "[N/A]"),
    "utilization.encoder": ("0", "[Not Supported]"),
    "utilization.decoder": ("4", "[Not Supported]"),
    "memory.free": ("8000", "15900"),
    "temperature.memory": ("55", "N/A"),
    "clocks.current.sm": ("1380", "[Unknown Error]"),
    "clocks.current.memory": ("877", "[GPU is lost]"),
    "clocks_throttle_reasons.active": ("0x0000000000000004", "[N/A]"),
    "ecc.errors.corrected.volatile.total": ("7", "[N/A]"),
    "ecc.errors.uncorrected.volatile.total": ("0", "[N/A]"),
    "ecc.errors.corrected.aggregate.total": ("123456789012", "[N/A]"),
    "ecc.errors.uncorrected.aggregate.total": ("1", "[N/A]"),
    "retired_pages.single_bit_ecc.count": ("2", "[N/A]"),
    "retired_pages.double_bit.count": ("0", "[N/A]"),
    "retired_pages.pending": ("No", "[N/A]"),
}
DMON = """\
# gpu  sbecc  dbecc    pci  rxpci  txpci
# Idx   errs   errs   errs   MB/s   MB/s
    0      -      -      3     12     40
    1      -      -      -      -      -
"""
FIELDS = (156, 202, 230, 200, 201, 1001, 1002, 1004)


def smi(
    cards: Mapping[str, tuple[str, ...]] = CARDS,
    *,
    listed: Iterable[str] | None = None,
    dmon: str = DMON,
    before: str = "",
) -> str:
    """An nvidia-smi that has these fields, says that it has `listed`, and does `before` first."""
    count = len(cards["index"])
    names = list(cards if listed is None else listed)
    described = "\n".join(f'"{name}" or "also.{name}"\nWhat {name} is.\n' for name in names)
    cases = "\n".join(
        f"        {field}) " + " ".join(f"v{n}='{value}'" for n, value in enumerate(values)) + " ;;"
        for field, values in cards.items()
    )
    grow = "; ".join(f'row{n}="$row{n}${{row{n}:+, }}$v{n}"' for n in range(count))
    told = "; ".join(f'echo "$row{n}"' for n in range(count))
    return f"""#!/bin/sh
{before}
case $1 in
--help-query-gpu) cat <<'END'
List of valid properties to query for the switch "--query-gpu=":

{described}
END
;;
--query-gpu=*)
    IFS=,
    for field in ${{1#--query-gpu=}}; do
        case $field in
{cases}
        *) echo "Field \\"$field\\" is not a valid field to query."; echo; exit 2 ;;
        esac
        {grow}
    done
    {told} ;;
dmon) cat <<'END'
{dmon}END
;;
esac
"""


def dcgmi(known: Iterable[int] = FIELDS, *, before: str = "", uuids: tuple[str, ...] = UUIDS) -> str:
    """A dcgmi that can watch these fields alone. It numbers devices the other way round than nvidia-smi.

    A figure is its field's number with the device's UUID's place behind it: 1002 of the first is 1002.0.
    """
    rows = "\n".join(
        f"        printf 'GPU {len(uuids) - 1 - place}     {uuid} '; row {place} $n"
        for place, uuid in enumerate(uuids)
    )
    allowed = "|".join(map(str, known)) or "none"
    return f"""#!/bin/sh
{before}
fields=${{3#54,}} count=$7
row() {{
    IFS=,
    for field in $fields; do
        case $field in
        1???) if [ "$2" = 1 ]; then printf 'N/A          '; else printf '%s.%s   ' "$field" "$1"; fi ;;
        230) printf 'N/A     ' ;;
        *) printf '%s.%s   ' "$field" "$1" ;;
        esac
    done
    unset IFS
    echo
}}
echo '#Entity   DVUUID       HEAD        '
echo 'ID                                 '
IFS=,
for field in $fields; do
    case $field in {allowed}) ;; *)
        echo 'Error setting watches. Result: The third-party Profiling module returned an unrecoverable error'
        exit 255 ;;
    esac
done
unset IFS
n=1
while [ "$n" -le "$count" ]; do
{rows}
    echo 'GPU-I 7   {uuids[0]} 9 9 9 9'
    echo '#Entity   DVUUID       HEAD        '
    echo 'ID                                 '
    n=$((n + 1))
done
"""


def install(folder: Path, **tools: str) -> None:
    """Put tools into a folder: smi=…, dcgmi=…."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, script in tools.items():
        path = folder / ("nvidia-smi" if name == "smi" else name)
        path.write_text(script)
        path.chmod(0o755)
