"""Trust boundaries to other users of the machine and the network: reading, running, fetching and showing."""
