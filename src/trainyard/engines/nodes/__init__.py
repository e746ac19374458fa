"""The engine of nodes: machines that are reached over a transport, with a program of ours on each."""
