"""`hs-server doctor`: sends canary requests to a running server and examines what its capture wrote.

- `canary`: the prompts, and the request ids they travel under.
- `wire`: HTTP, with the standard library alone.
- `records`: from part files to arrays.
- `findings`: what can be wrong, as pure functions over what was observed.
- `room`: space in scratch, promised like that of any client.
- `session`: sends, waits, reads, deletes.
- `examine`: all of it, under the lock, to a pass or a diagnosis.
- `command`: `hs-server doctor` itself.

It needs numpy but neither torch nor SGLang, so that a client in another environment can run it.
"""
