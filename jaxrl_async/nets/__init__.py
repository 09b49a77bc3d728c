"""Linen modules: no losses, no optimizers."""
