"""Gymnasium envs as actors want them: many lanes, explicit resets, actions in [-1, 1]."""
