"""How soon hostile functions and programs end under graders of a run without Kubernetes (`make bench NAME=local_graders`)."""
