"""Shows what a job's rounds looked like: its event logs as a picture or as a trace."""
