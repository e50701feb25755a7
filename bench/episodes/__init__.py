"""Measures what the launch of an episode costs (`make bench NAME=episodes`)."""
