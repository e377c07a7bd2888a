"""Series over time: resampled curves, exported files, plots."""
