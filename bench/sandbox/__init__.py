"""What programs of responses that try to do harm achieve in the sandbox (`make bench NAME=sandbox`)."""
