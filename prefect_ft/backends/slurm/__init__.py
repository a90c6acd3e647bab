"""Workers on the nodes of an allocation of Slurm."""
