"""What a run of very many rows, each really sent, costs the client in memory and time."""
