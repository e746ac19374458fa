"""The platform backend: machines that a platform's server provides through its queue."""
