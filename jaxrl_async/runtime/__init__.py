"""Where the pure parts meet threads, devices and files."""
