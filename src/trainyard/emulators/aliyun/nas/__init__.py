"""Actions of the product NAS: file systems, mount targets, access groups."""
