# Notes that everything here is as it should be at the time of `stamp`; `sinks.sh` stands before this.
mkdir -p "$state"
write_stamp "$stamp"
