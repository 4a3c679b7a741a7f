"""What N nodes would do: pure functions from a curve's records to a step time with intervals."""
