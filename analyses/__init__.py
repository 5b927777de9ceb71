"""Analyses: checkpoint -> labelled xarray data (no drawing) -> charts."""

if __name__ != "ssm_priors.analyses":  # one module, one name: under two names every registry would fill twice
    raise ImportError(f"import this package as ssm_priors.analyses, not as {__name__}")
