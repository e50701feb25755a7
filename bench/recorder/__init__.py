"""CPU seconds that a turn of an episode takes on all sides but the engine (`make bench NAME=recorder`)."""
