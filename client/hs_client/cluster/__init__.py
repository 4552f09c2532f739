"""Many nodes, one command: a driver deals out the rows, and on each node an actor runs the client on its leases.

Placement, and the noticing of dead processes and nodes, are Ray's. It is imported in `fleet` alone, and there late.
Part files never leave their node but through its mover: what travels here are row numbers, counts and lines of text.
"""
