"""Alibaba Cloud on loopback: ECS, VPC, NAS and STS, with machines that are real processes here."""
