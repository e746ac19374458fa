"""The `trainyard` command, also installed as `fastgpu` and `ecluster`. Each command has a file and no other logic."""
