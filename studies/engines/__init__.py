"""Engines: where a study's runs are executed; one file each, registered in ENGINES."""
