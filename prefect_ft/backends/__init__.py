"""Where workers run: a folder for each kind of infrastructure, none knowing another."""
