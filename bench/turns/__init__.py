"""What short rounds save where samples are episodes that wait for their environment most of the time, by the simulator."""
