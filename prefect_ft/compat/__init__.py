"""Interfaces of other libraries on this one's engine, for scripts that are written for them."""
