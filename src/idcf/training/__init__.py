"""Training: objectives, the one gradient loop, solvers, and the recipes that chain them."""
