"""Tasks: data with a metric, one file each, registered in `ssm_priors.registry.TASKS`.

A task is a class that fits `task.TaskKind`: a nested `Config`, `origin`, `spec(options)` and `load(options)`; its
docstring's first line is what `ssmp list tasks` shows. Data too large to ship lie in the `store`, written once by
`prepare`. Loading reads files only: nothing is ever fetched from a network.
"""
