"""Tasks: data with a metric, one file each, registered in `ssm_priors.registry.TASKS`.

A task is a class with a nested `Config` and a static method `load(options) -> Task`; its docstring's first line and
`Source:` are what `ssmp list tasks` shows. Loading reads files only: nothing is ever fetched from a network.
"""
