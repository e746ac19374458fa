"""Tasks in containers, run by the podman or docker of the node."""
