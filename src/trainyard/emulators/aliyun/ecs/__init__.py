"""Actions of the product ECS, one noun a file."""
