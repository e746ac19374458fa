"""The `trainyard` command, also installed as `fastgpu` and `ecluster`: one verb a file, no logic of its own."""
