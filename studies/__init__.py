"""Studies: a grid of runs, run fairly, with statistics and a report."""

if __name__ != "ssm_priors.studies":  # one module, one name: under two names every registry would fill twice
    raise ImportError(f"import this package as ssm_priors.studies, not as {__name__}")
