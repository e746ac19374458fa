"""The program on a node. Python 3.8 and its standard library only: it is sent there as one file, see ../agent_bundle.py."""
