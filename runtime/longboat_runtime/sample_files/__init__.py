"""Files of responses for people to read, at most one Parquet file per step (`spec.samples`, `longboat samples`)."""
