"""Where experience is kept: numpy, and never jax."""
