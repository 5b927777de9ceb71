"""Checkpoints of other public code, one file a family: recognised by parameter names, brought to one convention.

    y[t] = 2 Re sum_n C_n gain_n z_n^lag u[t - lag],   Im A >= 0,   dt in units of time a step,   C the true output

Each family is registered in `ssm_priors.registry.FORMATS`. Papers' own parameter names appear here and nowhere else.
"""
