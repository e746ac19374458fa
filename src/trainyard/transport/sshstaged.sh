trainyard_text=$(cat "$trainyard_script"; printf x)
rm -f -- "$trainyard_script"
unset trainyard_script
eval "${trainyard_text%x}"
