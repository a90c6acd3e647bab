"""The file that a run with containers keeps in its run-time directory. Imports nothing: loaded for every clean-up."""

ENGINES = "engines.json"
"""The file that lists which container engines may have workers of the run."""
