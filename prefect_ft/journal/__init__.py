"""The journal of a phase: its lines, what is decided on them, and what they come to."""
