"""Which blocking and which algorithm a matrix product takes, by predicted time."""
