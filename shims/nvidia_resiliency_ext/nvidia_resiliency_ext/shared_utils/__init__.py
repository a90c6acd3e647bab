"""What users of the in-process restart take from here."""
