"""The command `ssmp`: parses, asks the library, prints."""

if __name__ != "ssm_priors.cli":  # one module, one name: under two names every registry would fill twice
    raise ImportError(f"import this package as ssm_priors.cli, not as {__name__}")
