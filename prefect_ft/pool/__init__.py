"""The pool beyond a run's end: which systems are out of use for every run that looks into the same file."""
