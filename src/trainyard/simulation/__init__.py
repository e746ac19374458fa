"""The simulation: runs the scheduler on generated or recorded workloads in simulated time.

`jobs.py` says what a workload is and reads it from CSV, `traces.py` invents workloads with the shapes of published
clusters, `cluster.py` reads a cluster from TOML, `simulator.py` plays them, `metrics.py` measures, `report.py` and
`charts.py` draw. Nothing here touches a file or a clock: texts come in and go out, the command line opens the files.
"""
