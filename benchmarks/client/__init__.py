"""What sending requests costs the client."""
