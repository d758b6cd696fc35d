"""A soak: many small epochs with faults on a fleet that stays up, and whether anything grows. `make soak MINUTES=30`."""
