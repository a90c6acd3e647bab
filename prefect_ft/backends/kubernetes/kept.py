"""The files that a run with pods keeps in its run-time directory. Imports nothing: loaded for every clean-up."""

CLUSTER = "cluster.json"
"""The file that lists in which namespaces of which clusters the run may have pods."""

CORDONS = "cordons.json"
"""The file that lists where the run may have cordoned nodes that are uncordoned at its end."""
