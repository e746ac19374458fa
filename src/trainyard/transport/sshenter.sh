cd 2>/dev/null; printf '\036trainyard %s\n' "$$"
