"""Common to all layers: errors, variables, the choice of GPU or simulator, remedies."""
