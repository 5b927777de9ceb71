"""What theory prescribes for an SSM before training: eigenvalues, timescales, discretisation. NumPy, float64.

An init is a function, registered under its name in its family's file:

    @INITS.register("s4d-lin")
    def s4d_lin(d_state, channels, rng): ...    # -> eigenvalues A: (H, N/2) complex, one of each conjugate pair

Eigenvalues have negative real and non-negative imaginary part, per unit of time; multiplied by dt they are per step.

Families whose modes are given per step, or belong to all channels together, are plain functions that their mixers call:
`dss`, `dlr`, `lru`, `s5`.
"""
