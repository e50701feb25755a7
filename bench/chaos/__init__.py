"""What random faults did to real jobs (`make chaos`)."""
