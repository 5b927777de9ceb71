"""Mixers: layers that mix positions, one file each, registered in `ssm_priors.registry.MIXERS`.

A mixer is built as `Mixer(options, d_model=..., causal=..., dropout=..., rng=...)`, where `options` is an instance of
its own `Config`, and does what `ssm_priors.models.protocols.Mixer` says. A `Config` with a field `init` has an SSM
whose eigenvalues start from `ssm_priors.registry.INITS`. What state-space mixers share (bounds, convolution, scan,
read-out) are functions of `ssm_priors.models.statespace`.
"""
