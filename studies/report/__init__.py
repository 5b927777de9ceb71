"""The report of a study: one HTML file that needs neither network nor scripts, and a table of its runs."""
