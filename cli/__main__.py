"""`python -m ssm_priors.cli`: the command where no script of that name is on the path."""

from ssm_priors.cli.app import main

if __name__ == "__main__":
    main()
