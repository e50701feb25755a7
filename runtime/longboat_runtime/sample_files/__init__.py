"""Files of responses for people to read, one Parquet file per step (`spec.samples`, `longboat samples`)."""
