"""From a plan to what was released, and from there to ε."""
