"""Workers that are groups of processes of this machine."""
