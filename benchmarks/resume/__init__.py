"""How long a resumed run of a very large prompts file takes to its first request, and what memory it needs."""
