"""One record a step, by verl's names where it has the metric, written as JSON lines, TensorBoard events or Prometheus gauges."""
