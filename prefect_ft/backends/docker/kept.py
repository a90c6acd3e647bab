"""What a run with containers keeps in its run-time directory. Light: asked for every run that is cleared."""

ENGINES = "engines.json"
"""The file that tells which container engines may have workers of the run."""
