"""The usual step as machine code, from the bytes of a message to the bytes of its answer.

Python takes microseconds for every field of a message and every sequence of a batch, and three times as long when it is
woken by a packet than in a loop. What is usual is so done by one kernel each at both ends. What is not usual (odd
encodings, feedback, trees, anything that could be wrong) is left to :mod:`speculant_graph.rpc.convert` and to the
server's own code, which are also what tests hold the kernels against.
"""
