"""What all tests share: small runs, quiet recorders, and faked devices."""

import os

# Two CPU devices, so that a mesh of two can be tested anywhere; before jax is imported.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
)
os.environ["JAX_PLATFORMS"] = "cpu"
