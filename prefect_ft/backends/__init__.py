"""Where workers run: one module for each kind of infrastructure, none knowing another."""
