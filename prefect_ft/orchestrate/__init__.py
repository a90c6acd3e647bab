"""A run of a job from its begin to its end: what is checked before, its phases, what each is given. Free of Prefect."""
