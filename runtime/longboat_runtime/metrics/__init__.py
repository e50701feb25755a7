"""One record a step by verl's names, written as JSON lines, TensorBoard events and Prometheus gauges."""
