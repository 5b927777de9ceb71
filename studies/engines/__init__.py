"""Engines: where a study's runs are executed."""
