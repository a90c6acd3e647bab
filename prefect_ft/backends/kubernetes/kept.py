"""What a run with pods keeps in its run-time directory. Light: asked for every run that is cleared."""

CLUSTER = "cluster.json"
"""The file that tells in which namespaces of which clusters the run may have pods."""

CORDONS = "cordons.json"
"""The file that tells where the run may have cordoned nodes that are to be uncordoned with its end."""
