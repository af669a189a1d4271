"""What a method trains and how it goes on after a kill: checkpoints, the step loop, and the fits of the baselines."""
