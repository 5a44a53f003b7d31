"""Speed and memory of Sardonyx and its peers, and the models they are measured on."""
