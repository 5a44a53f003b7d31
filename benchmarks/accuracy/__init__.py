"""What quantisation costs in accuracy, on models that learnt something and data that is real."""
