"""Workers that are containers of Docker engines."""
