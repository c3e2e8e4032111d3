"""One prepared run on a machine with a GPU, which installs nothing and needs no network."""
