"""Arithmetic that trains (torch). Every operation has its defining form in `reference.py` and is tested against it.

Letters, the same in every file: B batch, L length, H channels (d_model), N state size counting both of a conjugate
pair (N/2 are stored), R x Q the split of L. Heads, rank and input features are spelled out. As variables A, B, C, D
and dt are the SSM's own; a shape in parentheses tells the two apart: `B: (H, N)`, `u: (B, L, H)`.

Layout is (B, L, H) from end to end. Complex parameters are stored as real pairs (..., 2).
"""
