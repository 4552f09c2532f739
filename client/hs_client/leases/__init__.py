"""Rows that are handed out while a run lasts: the holder of all of them leases ranges to clients, each at its own pace.

A *row number* is the place of a line among those of all prompts files, one after the other, from 0; blank lines count.
A *lease* is a range of them that one client has to bring to an end. Nothing here knows how messages travel further than
to the other end of a socket.
"""
