"""Long runs that look for rare faults: corrupted cores, mixed traffic, live switches."""
