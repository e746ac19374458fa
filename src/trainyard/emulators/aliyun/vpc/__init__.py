"""Actions of the product VPC: networks and elastic addresses."""
