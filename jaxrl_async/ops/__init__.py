"""Equations on arrays: pure, batched, no networks."""
