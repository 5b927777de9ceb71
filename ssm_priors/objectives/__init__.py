"""Objectives: what a phase of training learns. Pretraining ones are registered in `ssm_priors.registry.OBJECTIVES`.

An objective poses a problem from a batch (which inputs are hidden, what must be answered, where it counts) and scores
the answers as a sum and a count, so that a mean over batches of unequal weight is exact.
"""
