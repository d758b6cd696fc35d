"""Chaos: a fleet of real processes under a seeded storm of faults, audited after each round."""
