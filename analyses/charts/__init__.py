"""Charts: labelled data -> Altair charts with captions -> one page. No arithmetic here but the thinning for the eye."""
