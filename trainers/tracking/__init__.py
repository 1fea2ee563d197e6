"""Other places that a run reports to: copies of event files, experiment trackers."""
