"""Batches that are sampled as a plan says, and the data to sample from."""
