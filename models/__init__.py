"""How the protocols behave: executable reference models without I/O, clock, randomness or threads."""
