"""Each paper's headline experiment in the simulator, beside what the paper prints."""
