"""Files of what the model wrote, for people to read: one Parquet file for a step (`spec.samples`, `longboat samples`)."""
