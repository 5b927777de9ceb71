"""Loggers: where a run's rows go besides `metrics.csv`; one file each, registered in LOGGERS. They decide nothing."""
