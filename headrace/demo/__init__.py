"""`make demo`: the main job on real flights, on a stack of its own, in five steps; what was measured is printed."""
