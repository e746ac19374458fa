"""Cloud emulators: servers on loopback that answer like a provider."""
