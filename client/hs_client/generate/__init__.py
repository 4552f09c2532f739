"""On-policy data: the server answers the rows itself, then captures what it has said."""
