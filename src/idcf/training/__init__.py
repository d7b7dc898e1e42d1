"""Training: presets, objectives, the gradient loop, solvers, and the stages that use them."""
